// Shared by the engines with and without sdot: four columns per register.
#pragma once
#include "kernels/gemm_groupwise/generic.h"
#include "simd/arm_vec128.h"

namespace lowbit {

struct ArmGroups {
  using V = Neon;
  static constexpr int max_rows = 4;
  static constexpr int64_t spill(int) { return 0; }

  using Cols = uint8x16_t;
  using Quad = int8x16_t;

  LOWBIT_INLINE Cols load(const uint8_t* p) { return vld1q_u8(p); }
  template <int Shift, int Mask>
  LOWBIT_INLINE int8x16_t part(Cols c) {
    if constexpr (Shift != 0) c = vshrq_n_u8(c, Shift);
    return vreinterpretq_s8_u8(vandq_u8(c, vdupq_n_u8(Mask)));
  }
  LOWBIT_INLINE Quad load_a(const int8_t* p) { return vreinterpretq_s8_s32(vdupq_n_s32(load_as<int32_t>(p))); }
};

}  // namespace lowbit
