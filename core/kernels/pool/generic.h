// The algorithms once, for every vector width and code type.
#pragma once
#include "kernels/pool/pool.h"
#include "simd/bytes.h"
#include "simd/vec.h"

namespace lowbit {

// vector(i) for whole vectors of w lanes; the last overlaps the one before. one(i) for each of fewer than w.
template <int w, class Vector, class One>
LOWBIT_INLINE void cover(int64_t n, const Vector& vector, const One& one) {
  int64_t i = 0;
  for (; i + w <= n; i += w) vector(i);
  if (w == 1 || i >= n) return;
  if (n >= w) {
    vector(n - w);
  } else {
    for (; i < n; ++i) one(i);
  }
}

template <class B, class C>
void largest_of_rows(const RowsArgs& k) {
  const auto* const* rows = reinterpret_cast<const uint8_t* const*>(k.rows);
  auto* q = static_cast<uint8_t*>(k.out);
  cover<B::width>(
      k.n,
      [&](int64_t i) __attribute__((always_inline)) {
        auto found = B::load(rows[0] + i);
        for (int64_t r = 1; r < k.count; ++r) found = B::greatest(C{}, found, B::load(rows[r] + i));
        B::store(q + i, found);
      },
      [&](int64_t i) {
        C found = static_cast<C>(rows[0][i]);
        for (int64_t r = 1; r < k.count; ++r)
          if (static_cast<C>(rows[r][i]) > found) found = static_cast<C>(rows[r][i]);
        q[i] = static_cast<uint8_t>(found);
      });
}

template <class V, class C>
void total_of_rows(const RowsArgs& k) {
  const auto* const* rows = reinterpret_cast<const C* const*>(k.rows);
  auto* sum = static_cast<int32_t*>(k.out);
  cover<V::width>(
      k.n,
      [&](int64_t i) __attribute__((always_inline)) {
        auto found = V::load_codes(rows[0] + i);
        for (int64_t r = 1; r < k.count; ++r) found = V::add(found, V::load_codes(rows[r] + i));
        V::store_i32(sum + i, found);
      },
      [&](int64_t i) {
        sum[i] = 0;
        for (int64_t r = 0; r < k.count; ++r) sum[i] += rows[r][i];
      });
}

template <class V, class C>
void average_row(const AverageArgs& k) {
  constexpr int w = V::width;
  const auto zero = V::set_i32(k.zero), zy = V::set_i32(k.zy), least = V::set_i32(k.qmin - k.zy);
  const auto by = V::set(k.by), lo = V::set(static_cast<float>(k.qmin - k.zy)),
             hi = V::set(static_cast<float>(k.qmax - k.zy));
  C* q = static_cast<C*>(k.q);
  const auto codes = [&](const int32_t* sum) __attribute__((always_inline)) {
    // The bounds are integers, so clamping before rounding equals clamping after it.
    const auto steps = V::round_i32(V::limit(V::mul(V::to_f32(V::sub(V::load_i32(sum), zero)), by), lo, hi));
    return V::add(V::max(steps, least), zy);
  };
  cover<w>(
      k.n, [&](int64_t i) __attribute__((always_inline)) { V::store_codes(q + i, codes(k.sum + i)); },
      [&](int64_t i) {
        int32_t sum[w] = {k.sum[i]};
        C out[w];
        V::store_codes(out, codes(sum));
        q[i] = out[0];
      });
}

template <class V, class B>
struct PoolRows {
  static constexpr PoolRow rows[] = {
#define ROW(c, C) {Code::c, largest_of_rows<B, C>, total_of_rows<V, C>, average_row<V, C>},
#include "kernels/pool/kernels.inc"
#undef ROW
  };
};

}  // namespace lowbit
