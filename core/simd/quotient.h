// Division by a scale, for every vector width.
#pragma once
#include "simd/vec.h"

namespace lowbit {

// How x / s is computed. Both give the same codes wherever they are used.
enum class Quotient {
  division,
  fused,  // fma(x, inv, x * low): proven for the codes of a byte and scales up to kMaxQuotientScale
};

template <class V, class T, Quotient Wanted>
struct Divisor {
  static constexpr Quotient kind = V::has_fma && sizeof(T) == 4 ? Wanted : Quotient::division;
  using F = decltype(V::set(T{}));
  F first, second;  // inv and low; or scale and nothing

  static __attribute__((always_inline)) Divisor of(T s, Reciprocal<T> r) {
    if constexpr (kind != Quotient::division) return {V::set(r.inv), V::set(r.low)};
    return {V::set(s), V::set(s)};
  }
  // For scales of their own in each lane, as `of` for one.
  static __attribute__((always_inline)) Divisor of(F s) {
    if constexpr (kind != Quotient::division) {
      const F one = V::set(T{1}), inv = V::divide(one, s);
      return {inv, V::divide(V::fma(V::sub(V::set(T{0}), inv), s, one), s)};
    } else {
      return {s, s};
    }
  }
  static __attribute__((always_inline)) Divisor load(const T* s, const T* inv, const T* low) {
    if constexpr (kind != Quotient::division) return {V::load(inv), V::load(low)};
    return {V::load(s), V::load(s)};
  }
  __attribute__((always_inline)) F operator()(F x) const {
    if constexpr (kind == Quotient::fused) {
      return V::fma(x, first, V::mul(x, second));
    } else {
      return V::divide(x, first);
    }
  }
};

}  // namespace lowbit
