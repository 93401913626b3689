// What vectors of every ISA share. R has the operations on one register: of floats (F32), of integers (I32), or of half
// as many doubles (Half). Here, a vector of doubles is two registers, and eight sums in f64 are as many as it takes.
#pragma once
#include "simd/vec.h"

namespace lowbit {

template <class R>
struct Registers : R {
  using F32 = typename R::F32;
  using I32 = typename R::I32;
  using Half = typename R::Half;
  static constexpr int kHalf = R::width / 2;
  static constexpr bool has_fma = true;
  struct F64 {
    Half lo, hi;
  };
  using R::abs, R::add, R::limit, R::load, R::max_skip_nan, R::min_skip_nan, R::note_nan, R::positive, R::reduce_max;
  using R::reduce_min, R::round, R::round_i32, R::store, R::sub;

  LOWBIT_INLINE F64 load(const double* p) { return {R::load(p), R::load(p + kHalf)}; }
  LOWBIT_INLINE void store(double* p, F64 x) { R::store(p, x.lo), R::store(p + kHalf, x.hi); }
  LOWBIT_INLINE F32 set(float x) { return R::set(x); }
  LOWBIT_INLINE F64 set(double x) { return {R::set(x), R::set(x)}; }

  LOWBIT_INLINE F32 add(F32 x, F32 y) { return x + y; }
  LOWBIT_INLINE F32 sub(F32 x, F32 y) { return x - y; }
  LOWBIT_INLINE F32 mul(F32 x, F32 y) { return x * y; }
  LOWBIT_INLINE F32 divide(F32 x, F32 y) { return x / y; }
  LOWBIT_INLINE F64 add(F64 x, F64 y) { return {x.lo + y.lo, x.hi + y.hi}; }
  LOWBIT_INLINE F64 sub(F64 x, F64 y) { return {x.lo - y.lo, x.hi - y.hi}; }
  LOWBIT_INLINE F64 mul(F64 x, F64 y) { return {x.lo * y.lo, x.hi * y.hi}; }
  LOWBIT_INLINE F64 divide(F64 x, F64 y) { return {x.lo / y.lo, x.hi / y.hi}; }
  LOWBIT_INLINE F64 abs(F64 x) { return {R::abs(x.lo), R::abs(x.hi)}; }
  LOWBIT_INLINE F64 round(F64 x) { return {R::round(x.lo), R::round(x.hi)}; }
  LOWBIT_INLINE F64 limit(F64 x, F64 lo, F64 hi) {
    return {R::limit(x.lo, lo.lo, hi.lo), R::limit(x.hi, lo.hi, hi.hi)};
  }
  LOWBIT_INLINE F32 clamp(F32 x, F32 lo, F32 hi) { return R::max(lo, R::min(hi, x)); }
  LOWBIT_INLINE F64 clamp(F64 x, F64 lo, F64 hi) {
    return {R::max(lo.lo, R::min(hi.lo, x.lo)), R::max(lo.hi, R::min(hi.hi, x.hi))};
  }
  LOWBIT_INLINE F32 only_in(F32 r, F32 lo, F32 hi, F32 v) { return R::where(R::inside(r, lo, hi), v); }
  LOWBIT_INLINE F32 only_below(F32 r, F32 lo, F32 v) { return R::where(R::less(r, lo), v); }
  LOWBIT_INLINE F32 only_above(F32 r, F32 hi, F32 v) { return R::where(R::less(hi, r), v); }
  LOWBIT_INLINE F64 only_in(F64 r, F64 lo, F64 hi, F64 v) {
    return {R::where(R::inside(r.lo, lo.lo, hi.lo), v.lo), R::where(R::inside(r.hi, lo.hi, hi.hi), v.hi)};
  }
  LOWBIT_INLINE F64 only_below(F64 r, F64 lo, F64 v) {
    return {R::where(R::less(r.lo, lo.lo), v.lo), R::where(R::less(r.hi, lo.hi), v.hi)};
  }
  LOWBIT_INLINE F64 only_above(F64 r, F64 hi, F64 v) { return only_below(hi, r, v); }

  LOWBIT_INLINE I32 round_i32(F64 x) { return R::round_i32(x.lo, x.hi); }
  LOWBIT_INLINE F64 to_f64(F64 x) { return x; }
  LOWBIT_INLINE F64 to_f64(F32 x) { return {R::lower_half(x), R::upper_half(x)}; }
  LOWBIT_INLINE F64 to_f64(I32 i) { return {R::lower_half(i), R::upper_half(i)}; }
  LOWBIT_INLINE F64 min_skip_nan(F64 x, F64 acc) {
    return {R::min_skip_nan(x.lo, acc.lo), R::min_skip_nan(x.hi, acc.hi)};
  }
  LOWBIT_INLINE F64 max_skip_nan(F64 x, F64 acc) {
    return {R::max_skip_nan(x.lo, acc.lo), R::max_skip_nan(x.hi, acc.hi)};
  }
  LOWBIT_INLINE auto note_nan(typename R::Flag f, F64 x, F64 y) { return R::note_nan(f, x.lo, y.lo, x.hi, y.hi); }
  LOWBIT_INLINE I32 positive(F64 x) { return R::positive(x.lo, x.hi); }
  LOWBIT_INLINE double reduce_min(F64 x) { return R::reduce_min(R::min(x.lo, x.hi)); }
  LOWBIT_INLINE double reduce_max(F64 x) { return R::reduce_max(R::max(x.lo, x.hi)); }
  LOWBIT_INLINE I32 magnitude(F32 x) { return R::bit_and(R::bits(x), R::set_i32(0x7fffffff)); }
  template <class Out, class F>
  LOWBIT_INLINE void store_number(Out* p, F x) {
    store(p, x);
  }

  static constexpr int kParts = 8 / kHalf;
  struct Sum8 {
    Half part[kParts] = {};
  };
  template <class In>
  LOWBIT_INLINE Sum8 load8(const In* p) {
    if constexpr (kParts == 1) return {R::load8(p)};
    Sum8 all;
#pragma GCC unroll 4
    for (int k = 0; k < kParts; k += 2) {
      const F64 x = to_f64(load(p + k * kHalf));
      all.part[k] = x.lo, all.part[k + 1] = x.hi;
    }
    return all;
  }
  template <class In>
  LOWBIT_INLINE void sum_abs(Sum8& acc, const In* p) {
    const Sum8 x = load8(p);
#pragma GCC unroll 4
    for (int k = 0; k < kParts; ++k) acc.part[k] = acc.part[k] + R::abs(x.part[k]);
  }
  template <class T>
  LOWBIT_INLINE void sum_products(Sum8& acc, const T* p, const T* q) {
    const Sum8 x = load8(p), y = load8(q);
#pragma GCC unroll 4
    for (int k = 0; k < kParts; ++k) acc.part[k] = acc.part[k] + x.part[k] * y.part[k];
  }
  LOWBIT_INLINE void add_powers(Sum8 (&acc)[3], const float* p) {
    const Sum8 x = load8(p);
#pragma GCC unroll 4
    for (int k = 0; k < kParts; ++k) {
      acc[0].part[k] = acc[0].part[k] + x.part[k];
      // The square of a float is exact in f64: adding it in one step rounds as adding it in two.
      acc[1].part[k] = R::fma(x.part[k], x.part[k], acc[1].part[k]);
      acc[2].part[k] = acc[2].part[k] + R::abs(x.part[k]);
    }
  }
  LOWBIT_INLINE void lanes(const Sum8& acc, double* out) {
    for (int k = 0; k < kParts; ++k) R::store(out + k * kHalf, acc.part[k]);
  }
};

}  // namespace lowbit
