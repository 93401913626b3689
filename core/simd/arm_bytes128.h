// AArch64 AdvSIMD (NEON): 16 bytes.
#pragma once
#include "simd/arm_vec128.h"
#include "simd/bytes.h"

namespace lowbit {

struct NeonBytes {
  static constexpr int width = 16;
  static constexpr bool has_words = true, has_tables = false;
  using Bytes = uint8x16_t;
  using Words = int16x8_t;

  LOWBIT_INLINE Bytes load(const uint8_t* p) { return vld1q_u8(p); }
  LOWBIT_INLINE void store(uint8_t* p, Bytes x) { vst1q_u8(p, x); }
  LOWBIT_INLINE Bytes set(uint8_t b) { return vdupq_n_u8(b); }
  LOWBIT_INLINE Bytes flip(Bytes x, Bytes mask) { return veorq_u8(x, mask); }
  LOWBIT_INLINE int8x16_t s8(Bytes x) { return vreinterpretq_s8_u8(x); }
  LOWBIT_INLINE Bytes u8(int8x16_t x) { return vreinterpretq_u8_s8(x); }
  LOWBIT_INLINE Bytes greatest(int8_t, Bytes x, Bytes y) { return u8(vmaxq_s8(s8(x), s8(y))); }
  LOWBIT_INLINE Bytes greatest(uint8_t, Bytes x, Bytes y) { return vmaxq_u8(x, y); }
  LOWBIT_INLINE Bytes least(int8_t, Bytes x, Bytes y) { return u8(vminq_s8(s8(x), s8(y))); }
  LOWBIT_INLINE Bytes least(uint8_t, Bytes x, Bytes y) { return vminq_u8(x, y); }

  struct Table {
    uint8x16x4_t part[4];
    explicit Table(const uint8_t* p) {
      for (int k = 0; k < 4; ++k)
        part[k] = {
            {vld1q_u8(p + 64 * k), vld1q_u8(p + 64 * k + 16), vld1q_u8(p + 64 * k + 32), vld1q_u8(p + 64 * k + 48)}};
    }
  };
  LOWBIT_INLINE Bytes lookup(const Table& t, Bytes x) {
    const Bytes step = vdupq_n_u8(64);
    Bytes found = vqtbl4q_u8(t.part[0], x);
    for (int k = 1; k < 4; ++k) {
      x = vsubq_u8(x, step);
      found = vqtbx4q_u8(found, t.part[k], x);  // leaves what lies outside its 64
    }
    return found;
  }

  struct WordPair {
    Words lo, hi;
  };
  struct Pair {
    int8x8_t x, y;
  };
  struct Pairs {
    Pair lo, hi;
  };
  LOWBIT_INLINE WordPair widen(Bytes x) { return {vmovl_s8(vget_low_s8(s8(x))), vmovl_s8(vget_high_s8(s8(x)))}; }
  LOWBIT_INLINE Bytes narrow(WordPair w) { return u8(vcombine_s8(vqmovn_s16(w.lo), vqmovn_s16(w.hi))); }
  LOWBIT_INLINE Pairs pair(Bytes x, Bytes y) {
    return {{vget_low_s8(s8(x)), vget_low_s8(s8(y))}, {vget_high_s8(s8(x)), vget_high_s8(s8(y))}};
  }
  struct Weights {
    int8x8_t x = vdup_n_s8(0), y = vdup_n_s8(0);
    Weights() = default;
    Weights(int wx, int wy) : x(vdup_n_s8(static_cast<int8_t>(wx))), y(vdup_n_s8(static_cast<int8_t>(wy))) {}
  };
  LOWBIT_INLINE Words dot(const Weights& w, Pair p) { return vmlal_s8(vmull_s8(p.x, w.x), p.y, w.y); }
  LOWBIT_INLINE Words words(int16_t i) { return vdupq_n_s16(i); }
  LOWBIT_INLINE Words add(Words v, Words w) { return vaddq_s16(v, w); }
  LOWBIT_INLINE Words add_saturating(Words v, Words w) { return vqaddq_s16(v, w); }
  LOWBIT_INLINE Words sub(Words v, Words w) { return vsubq_s16(v, w); }
  template <int N>
  LOWBIT_INLINE Words shift_right(Words w) {
    return vshrq_n_s16(w, N);
  }
  LOWBIT_INLINE Words scale(Words w, Words by) { return vqrdmulhq_s16(w, by); }

  struct Floats {
    float32x4_t a, b;
  };
  LOWBIT_INLINE Floats products(Words v, Words w) {
    return {vcvtq_f32_s32(vmull_s16(vget_low_s16(v), vget_low_s16(w))), vcvtq_f32_s32(vmull_high_s16(v, w))};
  }
  LOWBIT_INLINE Words narrow(int32x4_t i, int32x4_t j) { return vcombine_s16(vqmovn_s32(i), vqmovn_s32(j)); }
};

}  // namespace lowbit
