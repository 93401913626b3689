// One row at a time, hot in L1: a load and a few operations for each vector of columns.
#pragma once
#include <type_traits>

#include "kernels/finish/finish.h"
#include "simd/vec.h"

namespace lowbit {

// What is the same for every column, in registers: a store to bytes might alias anything, and would have them loaded
// again each time.
template <class V>
struct FinishConstants {
  typename V::I32 row_a, row_b, zero;
  typename V::F32 row_scale, out_scale, low, high, floor, ceiling;
  bool divides;

  explicit FinishConstants(const FinishArgs& x)
      : row_a(V::set_i32(x.row_a)),
        row_b(V::set_i32(x.row_b)),
        zero(V::set_i32(x.zero)),
        row_scale(V::set(x.row_scale)),
        out_scale(V::set(x.out_scale)),
        low(V::set(static_cast<float>(x.lo - x.zero))),
        high(V::set(static_cast<float>(x.hi - x.zero))),
        floor(V::set(x.floor)),
        ceiling(V::set(x.ceiling)),
        divides(x.out_scale != 1.0f) {}
};

// Plain, here and below: nothing is added to the sums, and the scale is not divided.
template <class V, bool Plain>
LOWBIT_INLINE typename V::I32 exact_sums(const FinishArgs& x, const FinishConstants<V>& k, int64_t i) {
  typename V::I32 t = V::load_i32(static_cast<const int32_t*>(x.acc) + i);
  if constexpr (Plain) return t;
  if (x.by_a != nullptr) t = V::add(t, V::mul_i32(k.row_a, V::load_i32(x.by_a + i)));
  if (x.by_b != nullptr) t = V::add(t, V::mul_i32(k.row_b, V::load_i32(x.by_b + i)));
  return t;
}

template <class V, bool Plain>
LOWBIT_INLINE typename V::I32 codes_of(const FinishArgs& x, const FinishConstants<V>& k, int64_t i) {
  typename V::F32 scale = V::mul(k.row_scale, V::load(x.scale + i));
  if (!Plain && k.divides) scale = V::divide(scale, k.out_scale);
  const typename V::F32 y = V::mul(V::to_f32(exact_sums<V, Plain>(x, k, i)), scale);
  return V::add(V::round_i32(V::clamp(y, k.low, k.high)), k.zero);
}

template <class V, class Out, bool Plain>
LOWBIT_INLINE void finish_vector(const FinishArgs& x, const FinishConstants<V>& k, int64_t i, Out* to) {
  if constexpr (std::is_same_v<Out, int32_t>) {
    V::store_i32(to, exact_sums<V, Plain>(x, k, i));
  } else if constexpr (sizeof(Out) == 1) {
    V::store_codes(to, codes_of<V, Plain>(x, k, i));
  } else {
    typename V::F32 y = V::mul(V::to_f32(exact_sums<V, Plain>(x, k, i)), V::mul(k.row_scale, V::load(x.scale + i)));
    if (x.bias != nullptr) y = V::add(y, V::load(x.bias + i));
    V::store(to, V::clamp(y, k.floor, k.ceiling));
  }
}

template <class V, class Out>
LOWBIT_INLINE void finish_floats(const FinishArgs& x, const FinishConstants<V>& k, int64_t i, Out* to) {
  typename V::F32 y = V::mul(V::load(static_cast<const float*>(x.acc) + i), k.row_scale);
  if (x.bias != nullptr) y = V::add(y, V::load(x.bias + i));
  V::store(to, V::clamp(y, k.floor, k.ceiling));
}

template <class V, class Out, void (*Vector)(const FinishArgs&, const FinishConstants<V>&, int64_t, Out*)>
LOWBIT_INLINE void finish_from(const FinishArgs& x, const FinishConstants<V>& k, int64_t i) {
  Out* out = static_cast<Out*>(x.out);
  for (; i + V::width <= x.n; i += V::width) Vector(x, k, i, out + i);
  if (i < x.n) {
    Out last[V::width];
    Vector(x, k, i, last);
    std::memcpy(out + i, last, static_cast<size_t>(x.n - i) * sizeof(Out));
  }
}

template <class V, class Out, bool Plain>
LOWBIT_INLINE void finish_sums(const FinishArgs& x, const FinishConstants<V>& k) {
  int64_t i = 0;
  if constexpr (sizeof(Out) == 1) {
    const auto codes = [&](int64_t at) { return codes_of<V, Plain>(x, k, at); };
    for (; i + 4 * V::width <= x.n; i += 4 * V::width)
      V::template store_codes4<false>(static_cast<Out*>(x.out) + i, codes(i), codes(i + V::width),
                                      codes(i + 2 * V::width), codes(i + 3 * V::width));
  }
  finish_from<V, Out, finish_vector<V, Out, Plain>>(x, k, i);
}

template <class V, class Out>
void finish(const FinishArgs& given) {
  const FinishArgs x = given;
  const FinishConstants<V> k(x);
  if (x.by_a == nullptr && x.by_b == nullptr && !k.divides) {
    finish_sums<V, Out, true>(x, k);
  } else {
    finish_sums<V, Out, false>(x, k);
  }
}

template <class V, class Out>
void finish_all_floats(const FinishArgs& given) {
  const FinishArgs x = given;
  finish_from<V, Out, finish_floats<V, Out>>(x, FinishConstants<V>(x), 0);
}

template <class V, class Out>
constexpr auto finish_of_floats() -> void (*)(const FinishArgs&) {
  if constexpr (std::is_same_v<Out, int32_t> || sizeof(Out) == 1) {
    return nullptr;
  } else {
    return finish_all_floats<V, Out>;
  }
}

template <class V>
struct FinishTable {
  static constexpr FinishRow rows[kFinishRows] = {
#define ROW(name, type) {Result::name, finish<V, type>, finish_of_floats<V, type>()},
#include "kernels/finish/kernels.inc"
#undef ROW
  };
};

}  // namespace lowbit
