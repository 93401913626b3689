// Four vectors of columns at a time, for all rows: what belongs to columns stays in registers, and rows are hot in L1.
#pragma once
#include <type_traits>

#include "kernels/finish/finish.h"
#include "simd/vec.h"

namespace lowbit {

// What is the same everywhere, in registers: a store to bytes might alias anything, and would have them loaded again
// each time.
template <class V>
struct FinishConstants {
  typename V::I32 zero;
  typename V::F32 out_scale, low, high, floor, ceiling;

  explicit FinishConstants(const FinishArgs& x)
      : zero(V::set_i32(x.zero)),
        out_scale(V::set(x.out_scale)),
        low(V::set(static_cast<float>(x.lo - x.zero))),
        high(V::set(static_cast<float>(x.hi - x.zero))),
        floor(V::set(x.floor)),
        ceiling(V::set(x.ceiling)) {}
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
LOWBIT_INLINE typename V::F32 value_of(const FinishArgs& x, const FinishConstants<V>& k, typename V::F32 scale,
                                       int64_t m, int64_t i) {
  if constexpr (Work == FinishWork::floats) {
    const typename V::F32 sums = V::load(static_cast<const float*>(x.acc) + m * x.acc_stride + i);
    return x.row_scale == nullptr ? sums : V::mul(sums, V::set(x.row_scale[m]));
  } else {
    if (Work == FinishWork::scaled || (Work == FinishWork::all && x.row_scale != nullptr))
      scale = V::mul(V::set(x.row_scale[m]), scale);
    if (Work == FinishWork::all && Code && x.out_scale != 1.0f) scale = V::divide(scale, k.out_scale);
    return V::mul(V::to_f32(exact_sums<V, Work>(x, m, i)), scale);
  }
}

// One vector of row m, at column i.
template <class V, class Out, FinishWork Work>
LOWBIT_INLINE void finish_vector(const FinishArgs& x, const FinishConstants<V>& k, typename V::F32 scale,
                                 typename V::F32 bias, int64_t m, int64_t i, Out* to) {
  if constexpr (std::is_same_v<Out, int32_t>) {
    V::store_i32(to, exact_sums<V, Work>(x, m, i));
  } else if constexpr (sizeof(Out) == 1) {
    const typename V::F32 steps = V::clamp(value_of<V, Work, true>(x, k, scale, m, i), k.low, k.high);
    V::store_codes(to, V::add(V::round_i32(steps), k.zero));
  } else {
    typename V::F32 y = value_of<V, Work, false>(x, k, scale, m, i);
    if (x.bias != nullptr) y = V::add(y, bias);
    V::store(to, V::clamp(y, k.floor, k.ceiling));
  }
}

// `Vectors` vectors of columns from i on, of which `n` columns are there, for all rows.
template <class V, class Out, FinishWork Work, int Vectors>
LOWBIT_INLINE void finish_columns(const FinishArgs& x, const FinishConstants<V>& k, int64_t i, int64_t n) {
  constexpr int64_t kWidth = V::width, kRowsAhead = 2;
  constexpr bool kScales = !std::is_same_v<Out, int32_t> && Work != FinishWork::floats;
  typename V::F32 scale[Vectors], bias[Vectors];
#pragma GCC unroll 4
  for (int j = 0; j < Vectors; ++j) {
    scale[j] = kScales ? V::load(x.scale + i + j * kWidth) : k.floor;
    bias[j] = x.bias != nullptr ? V::load(x.bias + i + j * kWidth) : k.floor;
  }
  [[maybe_unused]] const typename V::ByteShift shift(x.zero, x.lo);
  Out* out = static_cast<Out*>(x.out) + i;
  for (int64_t m = 0; m < x.rows; ++m, out += x.out_stride) {
    // Rows are short and far apart: left to itself, the CPU would wait for each.
    if (m + kRowsAhead < x.rows)
#pragma GCC unroll 4
      for (int64_t at = 0; at < Vectors * kWidth * static_cast<int64_t>(sizeof(Out)); at += 64)
        __builtin_prefetch(reinterpret_cast<char*>(out + kRowsAhead * x.out_stride) + at, 1);
    if constexpr (sizeof(Out) == 1 && Vectors == 4) {
      // No more than limits above, as in kernels/quantize: what is too small saturates on the way to bytes.
      const auto steps = [&](int j) __attribute__((always_inline)) {
        return V::round_i32(V::limit(value_of<V, Work, true>(x, k, scale[j], m, i + j * kWidth), k.low, k.high));
      };
      V::template store_bytes4<false>(out, steps(0), steps(1), steps(2), steps(3), shift);
    } else if (n == Vectors * kWidth) {
#pragma GCC unroll 4
      for (int j = 0; j < Vectors; ++j)
        finish_vector<V, Out, Work>(x, k, scale[j], bias[j], m, i + j * kWidth, out + j * kWidth);
    } else {
      Out last[kWidth];
      finish_vector<V, Out, Work>(x, k, scale[0], bias[0], m, i, last);
      std::memcpy(out, last, static_cast<size_t>(n) * sizeof(Out));
    }
  }
}

template <class V, class Out, FinishWork Work>
LOWBIT_INLINE void finish_all(const FinishArgs& x) {
  constexpr int64_t kWidth = V::width;
  const FinishConstants<V> k(x);
  int64_t i = 0;
  for (; i + 4 * kWidth <= x.n; i += 4 * kWidth) finish_columns<V, Out, Work, 4>(x, k, i, 4 * kWidth);
  for (; i + kWidth <= x.n; i += kWidth) finish_columns<V, Out, Work, 1>(x, k, i, kWidth);
  if (i < x.n) finish_columns<V, Out, Work, 1>(x, k, i, x.n - i);
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
