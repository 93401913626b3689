// One row at a time, hot in L1: a load and a few operations for each vector of columns.
#pragma once
#include <type_traits>

#include "kernels/finish/finish.h"
#include "simd/vec.h"

namespace lowbit {

template <class V>
LOWBIT_INLINE typename V::I32 exact_sums(const FinishArgs& x, int64_t i) {
  typename V::I32 t = V::load_i32(static_cast<const int32_t*>(x.acc) + i);
  if (x.add != nullptr) t = V::add(t, V::load_i32(x.add + i));
  if (x.by_a != nullptr) t = V::add(t, V::mul_i32(V::set_i32(x.row_a), V::load_i32(x.by_a + i)));
  if (x.by_b != nullptr) t = V::add(t, V::mul_i32(V::set_i32(x.row_b), V::load_i32(x.by_b + i)));
  return t;
}

template <class V, class Out>
LOWBIT_INLINE void finish_vector(const FinishArgs& x, int64_t i, Out* to) {
  const typename V::I32 t = exact_sums<V>(x, i);
  if constexpr (std::is_same_v<Out, int32_t>) {
    V::store_i32(to, t);
  } else {
    const typename V::F32 sum = V::to_f32(t), scale = V::mul(V::set(x.row_scale), V::load(x.scale + i));
    if constexpr (sizeof(Out) == 1) {
      const bool is_divided = x.out_scale == 1.0f;
      const typename V::F32 y = V::mul(sum, is_divided ? scale : V::divide(scale, V::set(x.out_scale)));
      const typename V::F32 inside =
          V::clamp(y, V::set(static_cast<float>(x.lo - x.zero)), V::set(static_cast<float>(x.hi - x.zero)));
      V::store_codes(to, V::add(V::round_i32(inside), V::set_i32(x.zero)));
    } else {
      typename V::F32 y = V::mul(sum, scale);
      if (x.bias != nullptr) y = V::add(y, V::load(x.bias + i));
      V::store(to, V::clamp(y, V::set(x.floor), V::set(x.ceiling)));
    }
  }
}

template <class V, class Out>
LOWBIT_INLINE void finish_floats(const FinishArgs& x, int64_t i, Out* to) {
  typename V::F32 y = V::mul(V::load(static_cast<const float*>(x.acc) + i), V::set(x.row_scale));
  if (x.bias != nullptr) y = V::add(y, V::load(x.bias + i));
  V::store(to, V::clamp(y, V::set(x.floor), V::set(x.ceiling)));
}

template <class V, class Out, void (*Vector)(const FinishArgs&, int64_t, Out*)>
void finish(const FinishArgs& x) {
  Out* out = static_cast<Out*>(x.out);
  int64_t i = 0;
  for (; i + V::width <= x.n; i += V::width) Vector(x, i, out + i);
  if (i < x.n) {
    Out last[V::width];
    Vector(x, i, last);
    std::memcpy(out + i, last, static_cast<size_t>(x.n - i) * sizeof(Out));
  }
}

template <class V, class Out>
constexpr auto finish_of_floats() -> void (*)(const FinishArgs&) {
  if constexpr (std::is_same_v<Out, int32_t> || sizeof(Out) == 1) {
    return nullptr;
  } else {
    return finish<V, Out, finish_floats<V, Out>>;
  }
}

template <class V>
struct FinishTable {
  static constexpr FinishRow rows[kFinishRows] = {
#define ROW(name, type) {Result::name, finish<V, type, finish_vector<V, type>>, finish_of_floats<V, type>()},
#include "kernels/finish/kernels.inc"
#undef ROW
  };
};

}  // namespace lowbit
