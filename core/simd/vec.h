// The vector vocabulary. Each ISA header defines one struct V with these names, and kernels are written once against
// them. A vector holds V::width lanes whatever the lane type, so an F64 may span several registers. Operations that
// only some ISAs have are optional: kernels test for them with `requires`.
//
//   F32 F64 I32                    lane types
//   load(p)                        float, float16, bfloat16 -> F32; double -> F64 (exact)
//   load4(p)                       optional: four vectors, in the order that store_bytes4<Paired> restores
//   load_pair(p), store_pair<Rounding>(p, pair)   optional: 2 * V::width bfloat16, even and odd lanes apart; a NaN must
//                                  be one that bfloat16 can hold
//   store(p, F32), store(p, F64)   to float, float16, bfloat16, rounding to nearest even; to double
//   store_number(p, F)             the same for x that is not NaN
//   stream(p, F)                   optional: non-temporal store to float or double, p aligned to a vector
//   load_i32(p), store_i32(p, i), set(x), set_i32(i)
//   add, sub, mul, divide, abs     of floats; add, sub and mul_i32 of I32 are modulo 2^32
//   has_fma, fma(x, y, z)          x * y + z rounded once, where the ISA has it
//   limit(x, lo, hi)               never above hi; for NaN and for x below lo, round_i32(...) <= lo
//   limit_needs_lo                 false: limit ignores lo (NaN and underflow convert to INT_MIN)
//   clamp(x, lo, hi), round(x)     a NaN stays a NaN; round to nearest even, still a float
//   only_in(r, lo, hi, v)          v where lo <= r <= hi, else +0; only_below(r, lo, v), only_above(r, hi, v)
//   all_in(r, lo, hi)              optional: whether only_in would keep every lane
//   equal_bits(x, y)               bit i is set where lane i of x and y are the same number; of pairs, too
//   round_i32(y), to_f32(i), to_f64(i), to_f64(F32)   nearest even; exact; exact; exact
//   max(i, j), min(i, j), bit_and(i, j), shift_right(i, n)   shift_right fills with zeros, 0 <= n < 32
//   where_negative(i, v)           v where i < 0, else 0
//   look_up16(table, i)            optional: floats of a table of 16, by the low four bits of i
//   load_codes(p), store_codes(p, i)   s8 u8 s16 u16 <-> I32 in range, V::width codes
//   store_codes4(p, a, b, c, d)    the same for four vectors
//   ByteShift(z, qmin), store_bytes4(p, a, b, c, d, k)   s8 u8: max(i + z, qmin), saturating, for four vectors
//   Bounds(z, qmin, qmax)          optional, up to reduce_rows: constants of the next two, for steps of 16 bits
//   store_bounded4<Clamp>(p, a, b, c, d, k)   s8 u8 of steps in range, or with Clamp clamp(i + z, qmin, qmax)
//   store_nibbles4<Clamp>(Code, p, a, b, c, d, k)   the low four bits of the same, two per byte
//   kept(F32)                      the value in a register: compilers would rather load twice for two uses
//   bits(F32), max_u32(i, j)       the bits of a number; the maximum as unsigned integers
//   reduce_rows_max_i32(rows, n, out), reduce_rows_max_u32   of each of n vectors, n a multiple of 8
//   min_skip_nan(x, acc), max_skip_nan   a NaN in x leaves acc as it is
//   Flag no_nan(), note_nan(f, x, y), any(f)   f is raised where x or y has a NaN
//   reduce_min, reduce_max, reduce_max_i32   across lanes
//   magnitude(F32)                 |x| as its bits: ordered like integers, NaN above Inf above all else
//   positive(x)                    I32 1 where x > 0, else 0
//   sum_abs(acc, p)                adds |p[0..8)| to eight f64 lanes
//   sum_products(acc, p, q)        adds p[i] * q[i], i < 8, in f64, to eight f64 lanes
//   add_products(acc, x, y)        optional: the same for vectors whose first element is a multiple of 8
//   add_powers(acc, p)             adds x, x^2, |x| of eight floats to the lanes of acc[0..3)
//   merge_pairs<Shift>(src, dst)   kPairBlock bytes -> half as many: src[2i] | src[2i + 1] << Shift, of low Shift bits
//   split_pairs<Shift>(src, dst)   the inverse: kPairBlock / 2 bytes -> kPairBlock
#pragma once
#include <cstdint>
#include <cstring>

#include "base/types.h"

#define LOWBIT_INLINE static inline __attribute__((always_inline))

namespace lowbit {

// x / s at the speed of multiplication: fma(x, inv, x * low), where inv + low is 1 / s to about 48 bits. It rounds to
// the same integer as x / s for every f32 x with |x / s| < 256: shown for every mantissa of s, every half-integer and
// every x near one by core/tests --proof. Above this scale `low` would be subnormal.
constexpr float kMaxQuotientScale = 0x1p+96f;

template <class T>
struct Reciprocal {
  T inv, low;
};
LOWBIT_INLINE Reciprocal<float> reciprocal(float s) {
  const float inv = 1.0f / s;
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
  return {inv, __builtin_fmaf(-inv, s, 1.0f) / s};
#else
  // The same number: 1 - inv * s is exact in f64, and a float.
  return {inv, static_cast<float>(1.0 - static_cast<double>(inv) * static_cast<double>(s)) / s};
#endif
}
LOWBIT_INLINE Reciprocal<double> reciprocal(double s) { return {1.0 / s, 0.0}; }

// Calls f.operator()<n>() for the n in [1, Max] that is `rows`.
template <int Max, class F>
LOWBIT_INLINE void with_rows(int64_t rows, const F& f) {
  if (rows == Max) {
    f.template operator()<Max>();
  } else if constexpr (Max > 1) {
    with_rows<Max - 1>(rows, f);
  }
}

// Prefetches `bytes` that a loop reads Ahead bytes later, for loops that hardware prefetchers do not follow. Locality:
// of
// __builtin_prefetch; 0: they are read once.
template <int64_t Ahead, int Locality = 0>
LOWBIT_INLINE void prefetch_ahead(const void* p, int64_t bytes) {
  constexpr int64_t kLine = 64;
  for (int64_t line = 0; line < bytes; line += kLine)
    __builtin_prefetch(static_cast<const char*>(p) + Ahead + line, 0, Locality);
}

// x * y + sum, rounded once where the ISA can.
template <class V>
LOWBIT_INLINE typename V::F32 multiply_add(typename V::F32 x, typename V::F32 y, typename V::F32 sum) {
  if constexpr (V::has_fma) {
    return V::fma(x, y, sum);
  } else {
    return V::add(V::mul(x, y), sum);
  }
}

// What store_pair may assume: that every number is a bfloat16 already, or that none is a tie between two.
enum class PairRounding { exact, no_ties, any };

// A number from memory of any alignment.
template <class T>
LOWBIT_INLINE T load_as(const void* p) {
  T v;
  std::memcpy(&v, p, sizeof(T));
  return v;
}

// Eight sums of every eighth element, in the order in which all kernels add them.
LOWBIT_INLINE double sum_of_eight(const double* s) {
  return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

// Scalar conversions, exact or rounding to nearest even, for tails and for the scalar ISA.
LOWBIT_INLINE float bits_to_float(uint32_t b) { return load_as<float>(&b); }
LOWBIT_INLINE uint32_t float_to_bits(float f) { return load_as<uint32_t>(&f); }

LOWBIT_INLINE float widen(float x) { return x; }
LOWBIT_INLINE double widen(double x) { return x; }
LOWBIT_INLINE float widen(bfloat_t x) { return bits_to_float(static_cast<uint32_t>(x.bits) << 16); }
LOWBIT_INLINE float widen(half_t x) {
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000) << 16;
  const uint32_t rest = static_cast<uint32_t>(x.bits & 0x7fff) << 13;
  if ((x.bits & 0x7c00) == 0x7c00) return bits_to_float(sign | rest | 0x7f800000u);
  // Shift the exponent bias by multiplying: exact, and it normalizes subnormals on the way.
  return bits_to_float(sign | float_to_bits(bits_to_float(rest) * 0x1p112f));
}

LOWBIT_INLINE void narrow(float* p, float x) { *p = x; }
LOWBIT_INLINE void narrow(double* p, double x) { *p = x; }
LOWBIT_INLINE void narrow(bfloat_t* p, float x) {
  const uint32_t b = float_to_bits(x);
  if ((b & 0x7fffffffu) > 0x7f800000u) {
    p->bits = static_cast<uint16_t>((b >> 16) | 0x40);  // keep a NaN a NaN
  } else {
    p->bits = static_cast<uint16_t>((b + 0x7fff + ((b >> 16) & 1)) >> 16);
  }
}
LOWBIT_INLINE void narrow(half_t* p, float x) {
  const uint32_t b = float_to_bits(x), sign = (b >> 16) & 0x8000, rest = b & 0x7fffffffu;
  if (rest > 0x7f800000u) {
    p->bits = static_cast<uint16_t>(sign | 0x7e00 | ((rest >> 13) & 0x3ff));
  } else if (rest >= 0x477ff000u) {  // rounds to 65536 or more
    p->bits = static_cast<uint16_t>(sign | 0x7c00);
  } else if (rest < 0x38800000u) {  // a subnormal half: let an addition do the rounding
    const float magic = 0.5f;
    const uint32_t r = float_to_bits(bits_to_float(rest) + magic) - float_to_bits(magic);
    p->bits = static_cast<uint16_t>(sign | r);
  } else {
    const uint32_t r = rest - 0x38000000u + 0xfff + ((rest >> 13) & 1);
    p->bits = static_cast<uint16_t>(sign | (r >> 13));
  }
}

}  // namespace lowbit
