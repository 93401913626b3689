// Row by row: a load and a few operations for each vector of columns. Results are written in long runs, since pieces of
// many rows, one below the other, take up to three times as long to write (Zen 5, rows 4 KiB or more apart).
#pragma once
#include <type_traits>

#include "kernels/finish/finish.h"
#include "simd/vec.h"

namespace lowbit {

// What is the same everywhere, in registers: a store to bytes might alias anything, and would have them loaded again
// each time.
template <class V>
struct FinishConstants {
  typename V::I32 zero, least;
  typename V::F32 out_scale, low, high, floor, ceiling;
  typename V::ByteShift shift;

  explicit FinishConstants(const FinishArgs& x)
      : zero(V::set_i32(x.zero)),
        least(V::set_i32(x.lo - x.zero)),
        out_scale(V::set(x.out_scale)),
        low(V::set(static_cast<float>(x.lo - x.zero))),
        high(V::set(static_cast<float>(x.hi - x.zero))),
        floor(V::set(x.floor)),
        ceiling(V::set(x.ceiling)),
        shift(x.zero, x.lo) {}
};

// How much is to be done, here and below. plain: nothing is added to the sums, and their scale is that of their column;
// scaled: the row has a scale, too; floats: sums are floats, and have no scale but the row's.
enum class FinishWork { plain, scaled, all, floats };

template <class V, FinishWork Work>
LOWBIT_INLINE typename V::I32 exact_sums(const FinishArgs& x, int64_t m, int64_t i) {
  typename V::I32 t = V::load_i32(static_cast<const int32_t*>(x.acc) + m * x.acc_stride + i);
  if constexpr (Work != FinishWork::all) return t;
  if (x.by_a != nullptr) t = V::sub(t, V::mul_i32(V::set_i32(x.row_a[m]), V::load_i32(x.by_a + i)));
  if (x.by_b != nullptr) t = V::sub(t, V::mul_i32(V::set_i32(x.row_b[m]), V::load_i32(x.by_b + i)));
  return t;
}

// The value; where it becomes a code, in steps of the result, before it is rounded.
template <class V, FinishWork Work, bool Code>
LOWBIT_INLINE typename V::F32 value_of(const FinishArgs& x, const FinishConstants<V>& k, int64_t m, int64_t i) {
  if constexpr (Work == FinishWork::floats) {
    const typename V::F32 sums = V::load(static_cast<const float*>(x.acc) + m * x.acc_stride + i);
    return x.row_scale == nullptr ? sums : V::mul(sums, V::set(x.row_scale[m]));
  } else {
    typename V::F32 scale = V::load(x.scale + i);
    if (Work == FinishWork::scaled || (Work == FinishWork::all && x.row_scale != nullptr))
      scale = V::mul(V::set(x.row_scale[m]), scale);
    if (Work == FinishWork::all && Code && x.out_scale != 1.0f) scale = V::divide(scale, k.out_scale);
    return V::mul(V::to_f32(exact_sums<V, Work>(x, m, i)), scale);
  }
}

// One vector of row m, at column i.
template <class V, class Out, FinishWork Work>
LOWBIT_INLINE void finish_vector(const FinishArgs& x, const FinishConstants<V>& k, int64_t m, int64_t i, Out* to) {
  if constexpr (std::is_same_v<Out, int32_t>) {
    V::store_i32(to, exact_sums<V, Work>(x, m, i));
  } else if constexpr (sizeof(Out) == 1) {
    // A scale that overflowed makes NaN of a sum of 0: the least code, as finish_four and the reference have it.
    const typename V::I32 steps = V::round_i32(V::limit(value_of<V, Work, true>(x, k, m, i), k.low, k.high));
    V::store_codes(to, V::add(V::max(steps, k.least), k.zero));
  } else {
    typename V::F32 y = value_of<V, Work, false>(x, k, m, i);
    if (x.bias != nullptr) y = V::add(y, V::load(x.bias + i));
    V::store(to, V::clamp(y, k.floor, k.ceiling));
  }
}

// Four vectors of row m, at column i.
template <class V, class Out, FinishWork Work>
LOWBIT_INLINE void finish_four(const FinishArgs& x, const FinishConstants<V>& k, int64_t m, int64_t i, Out* to) {
  if constexpr (sizeof(Out) == 1) {
    // No more than limits above, as in kernels/quantize: what is too small saturates on the way to bytes.
    const auto steps = [&](int64_t at) __attribute__((always_inline)) {
      return V::round_i32(V::limit(value_of<V, Work, true>(x, k, m, at), k.low, k.high));
    };
    V::template store_bytes4<false>(to, steps(i), steps(i + V::width), steps(i + 2 * V::width), steps(i + 3 * V::width),
                                    k.shift);
  } else {
#pragma GCC unroll 4
    for (int64_t j = 0; j < 4 * V::width; j += V::width) finish_vector<V, Out, Work>(x, k, m, i + j, to + j);
  }
}

template <class V, class Out, FinishWork Work>
LOWBIT_INLINE void finish_all(const FinishArgs& x) {
  constexpr int64_t kWidth = V::width, kRowsAhead = 2, kBytes = sizeof(Out);
  const FinishConstants<V> k(x);
  Out* out = static_cast<Out*>(x.out);
  for (int64_t m = 0; m < x.rows; ++m, out += x.out_stride) {
    // Rows are short and far apart: left to itself, the CPU would wait for each.
    if (m + kRowsAhead < x.rows)
      for (int64_t at = 0; at < x.n * kBytes; at += 64)
        __builtin_prefetch(reinterpret_cast<char*>(out + kRowsAhead * x.out_stride) + at, 1);
    int64_t i = 0;
    for (; i + 4 * kWidth <= x.n; i += 4 * kWidth) finish_four<V, Out, Work>(x, k, m, i, out + i);
    for (; i + kWidth <= x.n; i += kWidth) finish_vector<V, Out, Work>(x, k, m, i, out + i);
    if (i < x.n) {
      Out last[kWidth];
      finish_vector<V, Out, Work>(x, k, m, i, last);
      std::memcpy(out + i, last, static_cast<size_t>(x.n - i) * sizeof(Out));
    }
  }
}

template <class V, class Out>
void finish(const FinishArgs& given) {
  const FinishArgs x = given;
  const bool divides = sizeof(Out) == 1 && x.out_scale != 1.0f;
  if (x.by_a != nullptr || x.by_b != nullptr || divides) {
    finish_all<V, Out, FinishWork::all>(x);
  } else if (x.row_scale != nullptr) {
    finish_all<V, Out, FinishWork::scaled>(x);
  } else {
    finish_all<V, Out, FinishWork::plain>(x);
  }
}

template <class V, class Out>
void finish_floats(const FinishArgs& given) {
  const FinishArgs x = given;
  finish_all<V, Out, FinishWork::floats>(x);
}

template <class V, class Out>
constexpr auto finish_of_floats() -> void (*)(const FinishArgs&) {
  if constexpr (std::is_same_v<Out, int32_t> || sizeof(Out) == 1) {
    return nullptr;
  } else {
    return finish_floats<V, Out>;
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
