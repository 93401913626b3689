// AArch64 AdvSIMD (NEON): four lanes. Part of the AArch64 baseline.
#pragma once
#include <arm_neon.h>

#include "simd/vec.h"

namespace lowbit {

struct Neon {
  static constexpr int width = 4;
  static constexpr bool has_fma = true, limit_needs_lo = true;
  using F32 = float32x4_t;
  struct F64 {
    float64x2_t lo, hi;
  };
  using I32 = int32x4_t;

  LOWBIT_INLINE F32 load(const float* p) { return vld1q_f32(p); }
  LOWBIT_INLINE uint16x4_t load_u16(const void* p) {
    uint16x4_t v;
    std::memcpy(&v, p, 8);
    return v;
  }
  LOWBIT_INLINE F32 load(const half_t* p) { return vcvt_f32_f16(vreinterpret_f16_u16(load_u16(p))); }
  LOWBIT_INLINE F32 load(const bfloat_t* p) { return vreinterpretq_f32_u32(vshll_n_u16(load_u16(p), 16)); }
  LOWBIT_INLINE F64 load(const double* p) { return {vld1q_f64(p), vld1q_f64(p + 2)}; }
  LOWBIT_INLINE I32 load_i32(const int32_t* p) { return vld1q_s32(p); }
  LOWBIT_INLINE void store_i32(int32_t* p, I32 i) { vst1q_s32(p, i); }
  LOWBIT_INLINE F32 set(float x) { return vdupq_n_f32(x); }
  LOWBIT_INLINE F64 set(double x) { return {vdupq_n_f64(x), vdupq_n_f64(x)}; }
  LOWBIT_INLINE I32 set_i32(int32_t i) { return vdupq_n_s32(i); }
  LOWBIT_INLINE I32 mul_i32(I32 i, I32 j) { return vmulq_s32(i, j); }

  LOWBIT_INLINE void store(float* p, F32 x) { vst1q_f32(p, x); }
  LOWBIT_INLINE void store(half_t* p, F32 x) {
    const float16x4_t h = vcvt_f16_f32(x);
    std::memcpy(p, &h, 8);
  }
  LOWBIT_INLINE void store(bfloat_t* p, F32 x) {
    const uint32x4_t b = vreinterpretq_u32_f32(x);
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(b, 16), vdupq_n_u32(1));
    const uint32x4_t rounded = vaddq_u32(b, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
    const uint32x4_t nan = vorrq_u32(b, vdupq_n_u32(0x400000));
    const uint16x4_t r = vshrn_n_u32(vbslq_u32(vceqq_f32(x, x), rounded, nan), 16);
    std::memcpy(p, &r, 8);
  }
  template <class Out, class F>
  LOWBIT_INLINE void store_number(Out* p, F x) {
    store(p, x);
  }
  LOWBIT_INLINE void store(double* p, F64 x) {
    vst1q_f64(p, x.lo);
    vst1q_f64(p + 2, x.hi);
  }

  // Comparisons with NaN are false, so a NaN falls through to lo; FMAX would propagate it.
  LOWBIT_INLINE F32 limit(F32 x, F32 lo, F32 hi) {
    const F32 y = vbslq_f32(vcgtq_f32(x, lo), x, lo);
    return vbslq_f32(vcltq_f32(y, hi), y, hi);
  }
  LOWBIT_INLINE float64x2_t limit(float64x2_t x, float64x2_t lo, float64x2_t hi) {
    const float64x2_t y = vbslq_f64(vcgtq_f64(x, lo), x, lo);
    return vbslq_f64(vcltq_f64(y, hi), y, hi);
  }
  LOWBIT_INLINE F64 limit(F64 x, F64 lo, F64 hi) { return {limit(x.lo, lo.lo, hi.lo), limit(x.hi, lo.hi, hi.hi)}; }
  LOWBIT_INLINE F32 abs(F32 x) { return vabsq_f32(x); }
  LOWBIT_INLINE F64 abs(F64 x) { return {vabsq_f64(x.lo), vabsq_f64(x.hi)}; }
  LOWBIT_INLINE F32 mul(F32 x, F32 y) { return vmulq_f32(x, y); }
  LOWBIT_INLINE F64 mul(F64 x, F64 y) { return {vmulq_f64(x.lo, y.lo), vmulq_f64(x.hi, y.hi)}; }
  LOWBIT_INLINE F32 divide(F32 x, F32 s) { return vdivq_f32(x, s); }
  LOWBIT_INLINE F64 divide(F64 x, F64 s) { return {vdivq_f64(x.lo, s.lo), vdivq_f64(x.hi, s.hi)}; }
  LOWBIT_INLINE F32 fma(F32 x, F32 y, F32 z) { return vfmaq_f32(z, x, y); }
  LOWBIT_INLINE F32 clamp(F32 x, F32 lo, F32 hi) { return vmaxq_f32(lo, vminq_f32(hi, x)); }
  LOWBIT_INLINE F64 clamp(F64 x, F64 lo, F64 hi) {
    return {vmaxq_f64(lo.lo, vminq_f64(hi.lo, x.lo)), vmaxq_f64(lo.hi, vminq_f64(hi.hi, x.hi))};
  }
  LOWBIT_INLINE F32 round(F32 x) { return vrndnq_f32(x); }
  LOWBIT_INLINE F64 round(F64 x) { return {vrndnq_f64(x.lo), vrndnq_f64(x.hi)}; }
  LOWBIT_INLINE F32 add(F32 x, F32 y) { return vaddq_f32(x, y); }
  LOWBIT_INLINE F64 add(F64 x, F64 y) { return {vaddq_f64(x.lo, y.lo), vaddq_f64(x.hi, y.hi)}; }
  LOWBIT_INLINE F32 sub(F32 x, F32 y) { return vsubq_f32(x, y); }
  LOWBIT_INLINE F64 sub(F64 x, F64 y) { return {vsubq_f64(x.lo, y.lo), vsubq_f64(x.hi, y.hi)}; }
  LOWBIT_INLINE F32 masked(uint32x4_t mask, F32 v) {
    return vreinterpretq_f32_u32(vandq_u32(mask, vreinterpretq_u32_f32(v)));
  }
  LOWBIT_INLINE float64x2_t masked(uint64x2_t mask, float64x2_t v) {
    return vreinterpretq_f64_u64(vandq_u64(mask, vreinterpretq_u64_f64(v)));
  }
  LOWBIT_INLINE F32 only_in(F32 r, F32 lo, F32 hi, F32 v) {
    return masked(vandq_u32(vcgeq_f32(r, lo), vcleq_f32(r, hi)), v);
  }
  LOWBIT_INLINE F32 only_below(F32 r, F32 lo, F32 v) { return masked(vcltq_f32(r, lo), v); }
  LOWBIT_INLINE F32 only_above(F32 r, F32 hi, F32 v) { return masked(vcgtq_f32(r, hi), v); }
  LOWBIT_INLINE F64 only_in(F64 r, F64 lo, F64 hi, F64 v) {
    return {masked(vandq_u64(vcgeq_f64(r.lo, lo.lo), vcleq_f64(r.lo, hi.lo)), v.lo),
            masked(vandq_u64(vcgeq_f64(r.hi, lo.hi), vcleq_f64(r.hi, hi.hi)), v.hi)};
  }
  LOWBIT_INLINE F64 only_below(F64 r, F64 lo, F64 v) {
    return {masked(vcltq_f64(r.lo, lo.lo), v.lo), masked(vcltq_f64(r.hi, lo.hi), v.hi)};
  }
  LOWBIT_INLINE F64 only_above(F64 r, F64 hi, F64 v) {
    return {masked(vcgtq_f64(r.lo, hi.lo), v.lo), masked(vcgtq_f64(r.hi, hi.hi), v.hi)};
  }
  LOWBIT_INLINE uint32_t equal_bits(F32 x, F32 y) {
    constexpr uint32_t kPlace[4] = {1, 2, 4, 8};
    return vaddvq_u32(vandq_u32(vceqq_f32(x, y), vld1q_u32(kPlace)));
  }
  LOWBIT_INLINE uint32_t equal_bits(F64 x, F64 y) {
    constexpr uint64_t kPlace[4] = {1, 2, 4, 8};
    const uint64x2_t lo = vandq_u64(vceqq_f64(x.lo, y.lo), vld1q_u64(kPlace));
    return static_cast<uint32_t>(vaddvq_u64(vorrq_u64(lo, vandq_u64(vceqq_f64(x.hi, y.hi), vld1q_u64(kPlace + 2)))));
  }
  LOWBIT_INLINE I32 round_i32(F32 y) { return vcvtnq_s32_f32(y); }
  LOWBIT_INLINE I32 round_i32(F64 y) {
    return vcombine_s32(vmovn_s64(vcvtnq_s64_f64(y.lo)), vmovn_s64(vcvtnq_s64_f64(y.hi)));
  }
  LOWBIT_INLINE F32 to_f32(I32 i) { return vcvtq_f32_s32(i); }
  LOWBIT_INLINE F64 to_f64(I32 i) {
    return {vcvtq_f64_s64(vmovl_s32(vget_low_s32(i))), vcvtq_f64_s64(vmovl_s32(vget_high_s32(i)))};
  }
  LOWBIT_INLINE I32 add(I32 i, I32 j) { return vaddq_s32(i, j); }
  LOWBIT_INLINE I32 bit_and(I32 i, I32 j) { return vandq_s32(i, j); }
  LOWBIT_INLINE I32 sub(I32 i, I32 j) { return vsubq_s32(i, j); }
  LOWBIT_INLINE I32 max(I32 i, I32 j) { return vmaxq_s32(i, j); }
  LOWBIT_INLINE I32 min(I32 i, I32 j) { return vminq_s32(i, j); }
  LOWBIT_INLINE I32 where_negative(I32 i, I32 v) { return vandq_s32(vshrq_n_s32(i, 31), v); }
  LOWBIT_INLINE I32 shift_right(I32 i, int n) {
    return vreinterpretq_s32_u32(vshlq_u32(vreinterpretq_u32_s32(i), vdupq_n_s32(-n)));
  }

  template <class T>
  LOWBIT_INLINE T load_as(const void* p, int bytes) {
    T v = {};
    std::memcpy(&v, p, bytes);
    return v;
  }
  LOWBIT_INLINE I32 load_codes(const int8_t* p) { return vmovl_s16(vget_low_s16(vmovl_s8(load_as<int8x8_t>(p, 4)))); }
  LOWBIT_INLINE I32 load_codes(const uint8_t* p) {
    return vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(vmovl_u8(load_as<uint8x8_t>(p, 4)))));
  }
  LOWBIT_INLINE I32 load_codes(const int16_t* p) { return vmovl_s16(load_as<int16x4_t>(p, 8)); }
  LOWBIT_INLINE I32 load_codes(const uint16_t* p) {
    return vreinterpretq_s32_u32(vmovl_u16(load_as<uint16x4_t>(p, 8)));
  }
  LOWBIT_INLINE void store8(void* p, I32 i) {
    const int16x4_t h = vmovn_s32(i);
    const int8x8_t b = vmovn_s16(vcombine_s16(h, h));
    std::memcpy(p, &b, 4);
  }
  LOWBIT_INLINE void store16(void* p, I32 i) {
    const int16x4_t h = vmovn_s32(i);
    std::memcpy(p, &h, 8);
  }
  LOWBIT_INLINE void store_codes(int8_t* p, I32 i) { store8(p, i); }
  LOWBIT_INLINE void store_codes(uint8_t* p, I32 i) { store8(p, i); }
  LOWBIT_INLINE void store_codes(int16_t* p, I32 i) { store16(p, i); }
  LOWBIT_INLINE void store_codes(uint16_t* p, I32 i) { store16(p, i); }
  template <class Code>
  LOWBIT_INLINE void store_codes4(Code* p, I32 a, I32 b, I32 c, I32 d) {
    const int16x8_t ab = vcombine_s16(vmovn_s32(a), vmovn_s32(b));
    const int16x8_t cd = vcombine_s16(vmovn_s32(c), vmovn_s32(d));
    if constexpr (sizeof(Code) == 1) {
      vst1q_s8(reinterpret_cast<int8_t*>(p), vcombine_s8(vmovn_s16(ab), vmovn_s16(cd)));
    } else {
      vst1q_s16(reinterpret_cast<int16_t*>(p), ab);
      vst1q_s16(reinterpret_cast<int16_t*>(p) + 8, cd);
    }
  }
  struct ByteShift {
    int16x8_t zero, qmin;
    ByteShift(int32_t z, int32_t lo)
        : zero(vdupq_n_s16(static_cast<int16_t>(z))), qmin(vdupq_n_s16(static_cast<int16_t>(lo))) {}
  };
  LOWBIT_INLINE int8x8_t shifted(I32 i, I32 j, const ByteShift& k) {
    return vmovn_s16(vmaxq_s16(vaddq_s16(vcombine_s16(vmovn_s32(i), vmovn_s32(j)), k.zero), k.qmin));
  }
  template <class Code>
  LOWBIT_INLINE void store_bytes4(Code* p, I32 a, I32 b, I32 c, I32 d, const ByteShift& k) {
    vst1q_s8(reinterpret_cast<int8_t*>(p), vcombine_s8(shifted(a, b, k), shifted(c, d, k)));
  }

  LOWBIT_INLINE F32 min_skip_nan(F32 x, F32 acc) { return vbslq_f32(vcltq_f32(x, acc), x, acc); }
  LOWBIT_INLINE F32 max_skip_nan(F32 x, F32 acc) { return vbslq_f32(vcgtq_f32(x, acc), x, acc); }
  LOWBIT_INLINE F64 min_skip_nan(F64 x, F64 acc) {
    return {vbslq_f64(vcltq_f64(x.lo, acc.lo), x.lo, acc.lo), vbslq_f64(vcltq_f64(x.hi, acc.hi), x.hi, acc.hi)};
  }
  LOWBIT_INLINE F64 max_skip_nan(F64 x, F64 acc) {
    return {vbslq_f64(vcgtq_f64(x.lo, acc.lo), x.lo, acc.lo), vbslq_f64(vcgtq_f64(x.hi, acc.hi), x.hi, acc.hi)};
  }
  using Flag = uint32x4_t;
  LOWBIT_INLINE Flag no_nan() { return vdupq_n_u32(0); }
  LOWBIT_INLINE Flag note_nan(Flag f, F32 x, F32 y) {
    return vornq_u32(f, vandq_u32(vceqq_f32(x, x), vceqq_f32(y, y)));
  }
  LOWBIT_INLINE Flag note_nan(Flag f, F64 x, F64 y) {
    const uint64x2_t lo = vandq_u64(vceqq_f64(x.lo, x.lo), vceqq_f64(y.lo, y.lo));
    const uint64x2_t hi = vandq_u64(vceqq_f64(x.hi, x.hi), vceqq_f64(y.hi, y.hi));
    return vornq_u32(f, vreinterpretq_u32_u64(vandq_u64(lo, hi)));
  }
  LOWBIT_INLINE bool any(Flag f) { return vmaxvq_u32(f) != 0; }
  LOWBIT_INLINE I32 positive(F32 x) { return vreinterpretq_s32_u32(vshrq_n_u32(vcgtzq_f32(x), 31)); }
  LOWBIT_INLINE I32 positive(F64 x) {
    const uint32x4_t mask = vcombine_u32(vmovn_u64(vcgtzq_f64(x.lo)), vmovn_u64(vcgtzq_f64(x.hi)));
    return vreinterpretq_s32_u32(vshrq_n_u32(mask, 31));
  }
  LOWBIT_INLINE float reduce_min(F32 x) { return vminvq_f32(x); }
  LOWBIT_INLINE float reduce_max(F32 x) { return vmaxvq_f32(x); }
  LOWBIT_INLINE double reduce_min(F64 x) { return vminvq_f64(vminq_f64(x.lo, x.hi)); }
  LOWBIT_INLINE double reduce_max(F64 x) { return vmaxvq_f64(vmaxq_f64(x.lo, x.hi)); }

  LOWBIT_INLINE I32 magnitude(F32 x) { return vandq_s32(vreinterpretq_s32_f32(x), vdupq_n_s32(0x7fffffff)); }
  LOWBIT_INLINE int32_t reduce_max_i32(I32 i) { return vmaxvq_s32(i); }

  struct Sum8 {
    float64x2_t lane[4] = {vdupq_n_f64(0), vdupq_n_f64(0), vdupq_n_f64(0), vdupq_n_f64(0)};
  };
  LOWBIT_INLINE F64 to_f64(F32 x) { return {vcvt_f64_f32(vget_low_f32(x)), vcvt_high_f64_f32(x)}; }
  LOWBIT_INLINE F64 to_f64(F64 x) { return x; }
  template <class In>
  LOWBIT_INLINE void sum_abs(Sum8& acc, const In* p) {
    const F64 a = to_f64(load(p)), b = to_f64(load(p + 4));
    acc.lane[0] = vaddq_f64(acc.lane[0], vabsq_f64(a.lo));
    acc.lane[1] = vaddq_f64(acc.lane[1], vabsq_f64(a.hi));
    acc.lane[2] = vaddq_f64(acc.lane[2], vabsq_f64(b.lo));
    acc.lane[3] = vaddq_f64(acc.lane[3], vabsq_f64(b.hi));
  }
  template <class T>
  LOWBIT_INLINE void sum_products(Sum8& acc, const T* p, const T* q) {
    for (int k = 0; k < 2; ++k) {
      const F64 x = to_f64(load(p + 4 * k)), y = to_f64(load(q + 4 * k));
      acc.lane[2 * k] = vaddq_f64(acc.lane[2 * k], vmulq_f64(x.lo, y.lo));
      acc.lane[2 * k + 1] = vaddq_f64(acc.lane[2 * k + 1], vmulq_f64(x.hi, y.hi));
    }
  }
  LOWBIT_INLINE void add_powers(Sum8 (&acc)[3], const float* p) {
    const F64 a = to_f64(load(p)), b = to_f64(load(p + 4));
    const float64x2_t x[4] = {a.lo, a.hi, b.lo, b.hi};
    for (int k = 0; k < 4; ++k) {
      acc[0].lane[k] = vaddq_f64(acc[0].lane[k], x[k]);
      acc[1].lane[k] = vfmaq_f64(acc[1].lane[k], x[k], x[k]);  // exact squares: see x86_vec256.h
      acc[2].lane[k] = vaddq_f64(acc[2].lane[k], vabsq_f64(x[k]));
    }
  }
  LOWBIT_INLINE void lanes(const Sum8& acc, double* out) {
    for (int i = 0; i < 4; ++i) vst1q_f64(out + 2 * i, acc.lane[i]);
  }

  static constexpr int kPairBlock = 32;
  template <int Shift>
  LOWBIT_INLINE void merge_pairs(const uint8_t* src, uint8_t* dst) {
    const uint8x16_t mask = vdupq_n_u8((1 << Shift) - 1);
    const uint8x16x2_t v = vld2q_u8(src);
    vst1q_u8(dst, vorrq_u8(vandq_u8(v.val[0], mask), vshlq_n_u8(vandq_u8(v.val[1], mask), Shift)));
  }
  template <int Shift>
  LOWBIT_INLINE void split_pairs(const uint8_t* src, uint8_t* dst) {
    const uint8x16_t v = vld1q_u8(src), mask = vdupq_n_u8((1 << Shift) - 1);
    const uint8x16x2_t out = {{vandq_u8(v, mask), vandq_u8(vshrq_n_u8(v, Shift), mask)}};
    vst2q_u8(dst, out);
  }
};

}  // namespace lowbit
