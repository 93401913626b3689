// AArch64 AdvSIMD (NEON): four lanes. Part of the AArch64 baseline.
#pragma once
#include <arm_neon.h>

#include "simd/registers.h"

namespace lowbit {

struct NeonRegisters {
  static constexpr int width = 4;
  static constexpr bool limit_needs_lo = true;
  using F32 = float32x4_t;
  using Half = float64x2_t;
  using I32 = int32x4_t;

  LOWBIT_INLINE F32 load(const float* p) { return vld1q_f32(p); }
  LOWBIT_INLINE F32 load(const half_t* p) { return vcvt_f32_f16(load_as<float16x4_t>(p)); }
  LOWBIT_INLINE F32 load(const bfloat_t* p) { return vreinterpretq_f32_u32(vshll_n_u16(load_as<uint16x4_t>(p), 16)); }
  LOWBIT_INLINE Half load(const double* p) { return vld1q_f64(p); }
  LOWBIT_INLINE I32 load_i32(const int32_t* p) { return vld1q_s32(p); }
  LOWBIT_INLINE void store_i32(int32_t* p, I32 i) { vst1q_s32(p, i); }
  LOWBIT_INLINE F32 set(float x) { return vdupq_n_f32(x); }
  LOWBIT_INLINE Half set(double x) { return vdupq_n_f64(x); }
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
  LOWBIT_INLINE void store(double* p, Half x) { vst1q_f64(p, x); }

  // Comparisons with NaN are false, so a NaN falls through to lo; FMAX would propagate it.
  LOWBIT_INLINE F32 limit(F32 x, F32 lo, F32 hi) {
    const F32 y = vbslq_f32(vcgtq_f32(x, lo), x, lo);
    return vbslq_f32(vcltq_f32(y, hi), y, hi);
  }
  LOWBIT_INLINE Half limit(Half x, Half lo, Half hi) {
    const Half y = vbslq_f64(vcgtq_f64(x, lo), x, lo);
    return vbslq_f64(vcltq_f64(y, hi), y, hi);
  }
  LOWBIT_INLINE F32 abs(F32 x) { return vabsq_f32(x); }
  LOWBIT_INLINE Half abs(Half x) { return vabsq_f64(x); }
  LOWBIT_INLINE F32 fma(F32 x, F32 y, F32 z) { return vfmaq_f32(z, x, y); }
  LOWBIT_INLINE Half fma(Half x, Half y, Half z) { return vfmaq_f64(z, x, y); }
  LOWBIT_INLINE F32 min(F32 x, F32 y) { return vminq_f32(x, y); }
  LOWBIT_INLINE Half min(Half x, Half y) { return vminq_f64(x, y); }
  LOWBIT_INLINE F32 max(F32 x, F32 y) { return vmaxq_f32(x, y); }
  LOWBIT_INLINE Half max(Half x, Half y) { return vmaxq_f64(x, y); }
  LOWBIT_INLINE F32 round(F32 x) { return vrndnq_f32(x); }
  LOWBIT_INLINE Half round(Half x) { return vrndnq_f64(x); }
  LOWBIT_INLINE uint32x4_t less(F32 x, F32 y) { return vcltq_f32(x, y); }
  LOWBIT_INLINE uint64x2_t less(Half x, Half y) { return vcltq_f64(x, y); }
  LOWBIT_INLINE uint32x4_t inside(F32 x, F32 lo, F32 hi) { return vandq_u32(vcgeq_f32(x, lo), vcleq_f32(x, hi)); }
  LOWBIT_INLINE uint64x2_t inside(Half x, Half lo, Half hi) { return vandq_u64(vcgeq_f64(x, lo), vcleq_f64(x, hi)); }
  LOWBIT_INLINE F32 where(uint32x4_t mask, F32 v) { return (F32)(mask & (uint32x4_t)v); }
  LOWBIT_INLINE Half where(uint64x2_t mask, Half v) { return (Half)(mask & (uint64x2_t)v); }
  LOWBIT_INLINE I32 round_i32(F32 y) { return vcvtnq_s32_f32(y); }
  LOWBIT_INLINE I32 round_i32(Half x, Half y) {
    return vcombine_s32(vmovn_s64(vcvtnq_s64_f64(x)), vmovn_s64(vcvtnq_s64_f64(y)));
  }
  LOWBIT_INLINE F32 to_f32(I32 i) { return vcvtq_f32_s32(i); }
  LOWBIT_INLINE Half lower_half(I32 i) { return vcvtq_f64_s64(vmovl_s32(vget_low_s32(i))); }
  LOWBIT_INLINE Half upper_half(I32 i) { return vcvtq_f64_s64(vmovl_s32(vget_high_s32(i))); }
  LOWBIT_INLINE Half lower_half(F32 x) { return vcvt_f64_f32(vget_low_f32(x)); }
  LOWBIT_INLINE Half upper_half(F32 x) { return vcvt_high_f64_f32(x); }
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
  LOWBIT_INLINE T load_four_bytes(const void* p) {
    T v = {};
    std::memcpy(&v, p, 4);
    return v;
  }
  LOWBIT_INLINE I32 load_codes(const int8_t* p) {
    return vmovl_s16(vget_low_s16(vmovl_s8(load_four_bytes<int8x8_t>(p))));
  }
  LOWBIT_INLINE I32 load_codes(const uint8_t* p) {
    return vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(vmovl_u8(load_four_bytes<uint8x8_t>(p)))));
  }
  LOWBIT_INLINE I32 load_codes(const int16_t* p) { return vmovl_s16(load_as<int16x4_t>(p)); }
  LOWBIT_INLINE I32 load_codes(const uint16_t* p) { return vreinterpretq_s32_u32(vmovl_u16(load_as<uint16x4_t>(p))); }
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
  LOWBIT_INLINE Half min_skip_nan(Half x, Half acc) { return vbslq_f64(vcltq_f64(x, acc), x, acc); }
  LOWBIT_INLINE Half max_skip_nan(Half x, Half acc) { return vbslq_f64(vcgtq_f64(x, acc), x, acc); }
  using Flag = uint32x4_t;
  LOWBIT_INLINE Flag no_nan() { return vdupq_n_u32(0); }
  LOWBIT_INLINE Flag note_nan(Flag f, F32 x, F32 y) {
    return vornq_u32(f, vandq_u32(vceqq_f32(x, x), vceqq_f32(y, y)));
  }
  LOWBIT_INLINE Flag note_nan(Flag f, Half x, Half y, Half u, Half v) {
    const uint64x2_t first = vandq_u64(vceqq_f64(x, x), vceqq_f64(y, y));
    const uint64x2_t second = vandq_u64(vceqq_f64(u, u), vceqq_f64(v, v));
    return vornq_u32(f, vreinterpretq_u32_u64(vandq_u64(first, second)));
  }
  LOWBIT_INLINE bool any(Flag f) { return vmaxvq_u32(f) != 0; }
  LOWBIT_INLINE I32 positive(F32 x) { return vreinterpretq_s32_u32(vshrq_n_u32(vcgtzq_f32(x), 31)); }
  LOWBIT_INLINE I32 positive(Half x, Half y) {
    const uint32x4_t mask = vcombine_u32(vmovn_u64(vcgtzq_f64(x)), vmovn_u64(vcgtzq_f64(y)));
    return vreinterpretq_s32_u32(vshrq_n_u32(mask, 31));
  }
  LOWBIT_INLINE float reduce_min(F32 x) { return vminvq_f32(x); }
  LOWBIT_INLINE float reduce_max(F32 x) { return vmaxvq_f32(x); }
  LOWBIT_INLINE double reduce_min(Half x) { return vminvq_f64(x); }
  LOWBIT_INLINE double reduce_max(Half x) { return vmaxvq_f64(x); }
  LOWBIT_INLINE I32 bits(F32 x) { return vreinterpretq_s32_f32(x); }
  LOWBIT_INLINE int32_t reduce_max_i32(I32 i) { return vmaxvq_s32(i); }

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

struct Neon : Registers<NeonRegisters> {
  LOWBIT_INLINE uint32_t equal_bits(F32 x, F32 y) {
    constexpr uint32_t kPlace[4] = {1, 2, 4, 8};
    return vaddvq_u32(vandq_u32(vceqq_f32(x, y), vld1q_u32(kPlace)));
  }
  LOWBIT_INLINE uint32_t equal_bits(F64 x, F64 y) {
    constexpr uint64_t kPlace[4] = {1, 2, 4, 8};
    const uint64x2_t lo = vandq_u64(vceqq_f64(x.lo, y.lo), vld1q_u64(kPlace));
    return static_cast<uint32_t>(vaddvq_u64(vorrq_u64(lo, vandq_u64(vceqq_f64(x.hi, y.hi), vld1q_u64(kPlace + 2)))));
  }
};

}  // namespace lowbit
