// Eight channels. A multiply-accumulate adds one tap, so a pair is two taps, and their weights are two separate runs.
#include "kernels/dwconv/generic.h"
#include "simd/arm_vec128.h"

namespace lowbit {

template <>
struct Taps<Neon> {
  static constexpr int kBlock = 8, kVectors = 2;
  using Codes = int16x8_t;
  struct Pair {
    Codes a, b;
  };
  LOWBIT_INLINE Codes widen(const uint8_t* p) { return vreinterpretq_s16_u16(vmovl_u8(vld1_u8(p))); }
  LOWBIT_INLINE Codes widen(const int8_t* p) { return vmovl_s8(vld1_s8(p)); }
  LOWBIT_INLINE Pair pair(Codes a, Codes b) { return {a, b}; }
  LOWBIT_INLINE int32x4_t add_one(int32x4_t acc, int v, Codes x, const int16_t* w) {
    return v == 0 ? vmlal_s16(acc, vget_low_s16(x), vld1_s16(w)) : vmlal_s16(acc, vget_high_s16(x), vld1_s16(w + 4));
  }
  LOWBIT_INLINE int32x4_t add(int32x4_t acc, int v, const Pair& x, const int16_t* w) {
    return add_one(add_one(acc, v, x.a, w), v, x.b, w + 8);
  }
  LOWBIT_INLINE int32x4_t add_second(int32x4_t acc, int v, const Pair& x, const int16_t* w) {
    return add_one(acc, v, x.b, w + 8);
  }
  LOWBIT_INLINE int channel(int v, int lane) { return v * 4 + lane; }
  LOWBIT_INLINE int place(int v, int lane, int second) { return second * 8 + v * 4 + lane; }
  LOWBIT_INLINE void store(int32_t* p, const int32x4_t* acc) {
    vst1q_s32(p, acc[0]);
    vst1q_s32(p + 4, acc[1]);
  }
  LOWBIT_INLINE void store_codes2(uint8_t* p, uint8_t* q, const int32x4_t* a, const int32x4_t* b,
                                  const Neon::ByteShift& k, uint8_t flip) {
    const uint8x8_t mask = vdup_n_u8(flip);
    vst1_u8(p, veor_u8(vreinterpret_u8_s8(Neon::shifted(a[0], a[1], k)), mask));
    vst1_u8(q, veor_u8(vreinterpret_u8_s8(Neon::shifted(b[0], b[1], k)), mask));
  }
};

constinit const KernelTable<DwconvRow> dwconv_rows_neon = DwconvRows<Neon>::rows;
}  // namespace lowbit
