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

// How much is to be done, here and below. plain: nothing is added to the sums, and their scale is that of their column;
// scaled: the row has a scale, too.
enum class FinishWork { plain, scaled, all };

template <class V, FinishWork Work>
LOWBIT_INLINE typename V::I32 exact_sums(const FinishArgs& x, const FinishConstants<V>& k, int64_t i) {
  typename V::I32 t = V::load_i32(static_cast<const int32_t*>(x.acc) + i);
  if constexpr (Work != FinishWork::all) return t;
  if (x.by_a != nullptr) t = V::add(t, V::mul_i32(k.row_a, V::load_i32(x.by_a + i)));
  if (x.by_b != nullptr) t = V::add(t, V::mul_i32(k.row_b, V::load_i32(x.by_b + i)));
  return t;
}

// The value; where it becomes a code, in steps of the result, before it is rounded.
template <class V, FinishWork Work, bool Code>
LOWBIT_INLINE typename V::F32 value_of(const FinishArgs& x, const FinishConstants<V>& k, int64_t i) {
  typename V::F32 scale = V::load(x.scale + i);
  if constexpr (Work != FinishWork::plain) scale = V::mul(k.row_scale, scale);
  if constexpr (Work == FinishWork::all && Code)
    if (k.divides) scale = V::divide(scale, k.out_scale);
  return V::mul(V::to_f32(exact_sums<V, Work>(x, k, i)), scale);
}

template <class V, FinishWork Work>
LOWBIT_INLINE typename V::I32 codes_of(const FinishArgs& x, const FinishConstants<V>& k, int64_t i) {
  return V::add(V::round_i32(V::clamp(value_of<V, Work, true>(x, k, i), k.low, k.high)), k.zero);
}

template <class V, class Out, FinishWork Work>
LOWBIT_INLINE void finish_vector(const FinishArgs& x, const FinishConstants<V>& k, int64_t i, Out* to) {
  if constexpr (std::is_same_v<Out, int32_t>) {
    V::store_i32(to, exact_sums<V, Work>(x, k, i));
  } else if constexpr (sizeof(Out) == 1) {
    V::store_codes(to, codes_of<V, Work>(x, k, i));
  } else {
    typename V::F32 y = value_of<V, Work, false>(x, k, i);
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

template <class V, class Out, FinishWork Work>
LOWBIT_INLINE void finish_sums(const FinishArgs& x, const FinishConstants<V>& k) {
  int64_t i = 0;
  if constexpr (sizeof(Out) == 1) {
    // No more than limits above, as in kernels/quantize: what is too small saturates on the way to bytes.
    const typename V::ByteShift shift(x.zero, x.lo);
    const auto steps = [&](int64_t at) __attribute__((always_inline)) {
      return V::round_i32(V::limit(value_of<V, Work, true>(x, k, at), k.low, k.high));
    };
    for (; i + 4 * V::width <= x.n; i += 4 * V::width)
      V::template store_bytes4<false>(static_cast<Out*>(x.out) + i, steps(i), steps(i + V::width),
                                      steps(i + 2 * V::width), steps(i + 3 * V::width), shift);
  }
  finish_from<V, Out, finish_vector<V, Out, Work>>(x, k, i);
}

template <class V, class Out>
void finish(const FinishArgs& given) {
  const FinishArgs x = given;
  const FinishConstants<V> k(x);
  if (x.by_a != nullptr || x.by_b != nullptr || k.divides) {
    finish_sums<V, Out, FinishWork::all>(x, k);
  } else if (x.row_scale != 1.0f) {
    finish_sums<V, Out, FinishWork::scaled>(x, k);
  } else {
    finish_sums<V, Out, FinishWork::plain>(x, k);
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
