// Division by a scale, for every vector width.
#pragma once
#include "simd/vec.h"

namespace lowbit {

// How x / s is found, from always right to fastest. All give the same codes wherever they are used.
enum class Quotient {
  division,
  fused,    // fma(x, inv, x * low): proven for the codes of a byte and scales up to kMaxQuotientScale
  product,  // x * inv: right for some scales and half-width x, which `product_inverse` finds out
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
    if constexpr (kind == Quotient::product) {
      return V::mul(x, first);
    } else if constexpr (kind == Quotient::fused) {
      return V::fma(x, first, V::mul(x, second));
    } else {
      return V::divide(x, first);
    }
  }
};

// Widened halves are sparse: between two neighbours that lie on either side of a half-integer number of steps there
// is room for error. Both x * inv and x / s, rounded, grow with x, so if they agree on the neighbours around each of
// the half-integers between codes they agree on every x. `kDropped`: bits of an f32 that are 0 in a widened In.
template <class In>
constexpr int kDropped = 0;
template <>
inline constexpr int kDropped<half_t> = 13;
template <>
inline constexpr int kDropped<bfloat_t> = 16;

// How a product becomes an integer: rounded to f32 first, or not at all before it is added to kRoundByAddition.
enum class Rounding { of_product, by_addition };
constexpr float kRoundByAddition = 0x1.8p23f;  // after which floats are integers, even ones even

template <Rounding How>
LOWBIT_INLINE float rounded_product(float x, float inv) {
  if constexpr (How == Rounding::by_addition) return __builtin_fmaf(x, inv, kRoundByAddition) - kRoundByAddition;
  return __builtin_rintf(x * inv);
}

template <class In, Rounding How>
LOWBIT_INLINE bool product_suffices(float s, float inv, int reach) {
  constexpr uint32_t step = 1u << kDropped<In>;
  constexpr int kBlock = 32;  // half-integers between two looks at the outcome
  for (int first = 0; first < reach; first += kBlock) {
    int32_t different = 0;
    for (int k = first; k < first + kBlock; ++k) {
      const uint32_t near = float_to_bits((static_cast<float>(k) + 0.5f) * s) & ~(step - 1);
      for (uint32_t bits : {near - step, near, near + step}) {
        const float x = bits_to_float(bits);
        different |= __builtin_rintf(x / s) != rounded_product<How>(x, inv);
      }
    }
    if (different) return false;
  }
  return true;
}

// The f32 to multiply by in place of a division by s, or 0 where none will do for codes up to `reach` steps from the
// zero point.
template <class In, Rounding How>
static float found_inverse(float s, int reach) {
  const uint32_t nearest = float_to_bits(1.0f / s);
  for (uint32_t bits : {nearest, nearest - 1, nearest + 1})
    if (product_suffices<In, How>(s, bits_to_float(bits), reach)) return bits_to_float(bits);
  return 0;
}

constexpr int64_t kWorthAnInverse = 1 << 15;  // elements for which it pays to look for one

// The same, or 0 where it is not worth looking. A thread remembers its last answer: it asks again for each piece of a
// tensor.
template <class In>
static float product_inverse(float s, int reach, int64_t n) {
  static thread_local float known_scale = 0, known = 0;
  static thread_local int known_reach = 0;
  if (s == known_scale && reach == known_reach) return known;
  if (n < kWorthAnInverse) return 0;
  known_scale = s, known_reach = reach, known = found_inverse<In, Rounding::of_product>(s, reach);
  return known;
}

}  // namespace lowbit
