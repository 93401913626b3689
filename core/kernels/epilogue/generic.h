// Row by row, a load and a few operations per vector of columns. Each row is written in one run: writing short parts of
// many rows is up to three times slower where row strides are 4 KiB or more.
#pragma once
#include <type_traits>

#include "kernels/epilogue/epilogue.h"
#include "simd/vec.h"

namespace lowbit {

// Constants in registers. A store to bytes may alias anything, so members of EpilogueArgs would be loaded again after
// each store.
template <class V>
struct EpilogueConstants {
  typename V::I32 zero, least;
  typename V::F32 out_scale, low, high, floor, ceiling;
  typename V::ByteShift shift;

  explicit EpilogueConstants(const EpilogueArgs& x)
      : zero(V::set_i32(x.zero)),
        least(V::set_i32(x.lo - x.zero)),
        out_scale(V::set(x.out_scale)),
        low(V::set(static_cast<float>(x.lo - x.zero))),
        high(V::set(static_cast<float>(x.hi - x.zero))),
        floor(V::set(x.floor)),
        ceiling(V::set(x.ceiling)),
        shift(x.zero, x.lo) {}
};

// Which operations are needed. plain: only the scale per column; scaled: a scale per row, too; floats: float
// accumulators, with no scale but that of the row.
enum class EpilogueWork { plain, scaled, all, floats };

template <class V, EpilogueWork Work>
LOWBIT_INLINE typename V::I32 exact_sums(const EpilogueArgs& x, int64_t m, int64_t i) {
  typename V::I32 t = V::load_i32(static_cast<const int32_t*>(x.acc) + m * x.acc_stride + i);
  if constexpr (Work != EpilogueWork::all) return t;
  if (x.by_a != nullptr) t = V::sub(t, V::mul_i32(V::set_i32(x.row_a[m]), V::load_i32(x.by_a + i)));
  if (x.by_b != nullptr) t = V::sub(t, V::mul_i32(V::set_i32(x.row_b[m]), V::load_i32(x.by_b + i)));
  return t;
}

// The value before rounding; for codes, in steps of out_scale.
template <class V, EpilogueWork Work, bool Code>
LOWBIT_INLINE typename V::F32 value_of(const EpilogueArgs& x, const EpilogueConstants<V>& k, int64_t m, int64_t i) {
  if constexpr (Work == EpilogueWork::floats) {
    const typename V::F32 sums = V::load(static_cast<const float*>(x.acc) + m * x.acc_stride + i);
    return x.row_scale == nullptr ? sums : V::mul(sums, V::set(x.row_scale[m]));
  } else {
    typename V::F32 scale = V::load(x.scale + i);
    if (Work == EpilogueWork::scaled || (Work == EpilogueWork::all && x.row_scale != nullptr))
      scale = V::mul(V::set(x.row_scale[m]), scale);
    if (Work == EpilogueWork::all && Code && x.out_scale != 1.0f) scale = V::divide(scale, k.out_scale);
    return V::mul(V::to_f32(exact_sums<V, Work>(x, m, i)), scale);
  }
}

// One vector of row m, at column i.
template <class V, class Out, EpilogueWork Work>
LOWBIT_INLINE void epilogue_vector(const EpilogueArgs& x, const EpilogueConstants<V>& k, int64_t m, int64_t i,
                                   Out* to) {
  if constexpr (std::is_same_v<Out, int32_t>) {
    V::store_i32(to, exact_sums<V, Work>(x, m, i));
  } else if constexpr (sizeof(Out) == 1) {
    // A scale that overflowed turns an accumulator of 0 into NaN, which gives the lowest code, as in the reference.
    const typename V::I32 steps = V::round_i32(V::limit(value_of<V, Work, true>(x, k, m, i), k.low, k.high));
    V::store_codes(to, V::add(V::max(steps, k.least), k.zero));
  } else {
    typename V::F32 y = value_of<V, Work, false>(x, k, m, i);
    if (x.bias != nullptr) y = V::add(y, V::load(x.bias + i));
    V::store(to, V::clamp(y, k.floor, k.ceiling));
  }
}

// Four vectors of row m, at column i.
template <class V, class Out, EpilogueWork Work>
LOWBIT_INLINE void epilogue_four(const EpilogueArgs& x, const EpilogueConstants<V>& k, int64_t m, int64_t i, Out* to) {
  if constexpr (sizeof(Out) == 1) {
    // An upper bound is enough, as in kernels/quantize: values below saturate on the way to bytes.
    const auto steps = [&](int64_t at) __attribute__((always_inline)) {
      return V::round_i32(V::limit(value_of<V, Work, true>(x, k, m, at), k.low, k.high));
    };
    V::store_bytes4(to, steps(i), steps(i + V::width), steps(i + 2 * V::width), steps(i + 3 * V::width), k.shift);
  } else {
#pragma GCC unroll 4
    for (int64_t j = 0; j < 4 * V::width; j += V::width) epilogue_vector<V, Out, Work>(x, k, m, i + j, to + j);
  }
}

template <class V, class Out, EpilogueWork Work>
LOWBIT_INLINE void epilogue_rows_as(const EpilogueArgs& x) {
  constexpr int64_t kWidth = V::width, kRowsAhead = 2, kBytes = sizeof(Out);
  const EpilogueConstants<V> k(x);
  Out* out = static_cast<Out*>(x.out);
  for (int64_t m = 0; m < x.rows; ++m, out += x.out_stride) {
    // Prefetch for writing: rows are short and far apart, which hardware prefetchers do not cover.
    if (m + kRowsAhead < x.rows)
      for (int64_t at = 0; at < x.n * kBytes; at += 64)
        __builtin_prefetch(reinterpret_cast<char*>(out + kRowsAhead * x.out_stride) + at, 1);
    int64_t i = 0;
    for (; i + 4 * kWidth <= x.n; i += 4 * kWidth) epilogue_four<V, Out, Work>(x, k, m, i, out + i);
    for (; i + kWidth <= x.n; i += kWidth) epilogue_vector<V, Out, Work>(x, k, m, i, out + i);
    if (i < x.n) {
      Out last[kWidth];
      epilogue_vector<V, Out, Work>(x, k, m, i, last);
      std::memcpy(out + i, last, static_cast<size_t>(x.n - i) * sizeof(Out));
    }
  }
}

template <class V, class Out, bool Floats = false>
void epilogue(const EpilogueArgs& given) {
  const EpilogueArgs x = given;
  if constexpr (Floats) return epilogue_rows_as<V, Out, EpilogueWork::floats>(x);
  const bool divides = sizeof(Out) == 1 && x.out_scale != 1.0f;
  if (x.by_a != nullptr || x.by_b != nullptr || divides) {
    epilogue_rows_as<V, Out, EpilogueWork::all>(x);
  } else if (x.row_scale != nullptr) {
    epilogue_rows_as<V, Out, EpilogueWork::scaled>(x);
  } else {
    epilogue_rows_as<V, Out, EpilogueWork::plain>(x);
  }
}

template <class V, class Out>
constexpr auto float_epilogue_or_null() -> void (*)(const EpilogueArgs&) {
  if constexpr (std::is_same_v<Out, int32_t> || sizeof(Out) == 1) {
    return nullptr;
  } else {
    return epilogue<V, Out, true>;
  }
}

template <class V>
struct EpilogueRows {
  static constexpr EpilogueRow rows[] = {
#define ROW(name, type) {Result::name, epilogue<V, type>, float_epilogue_or_null<V, type>()},
#include "kernels/epilogue/kernels.inc"
#undef ROW
  };
};

}  // namespace lowbit
