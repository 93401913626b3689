#include <arm_neon.h>

#include "kernels/gemm_groupwise/generic.h"
#include "simd/arm_vec128.h"

namespace lowbit {
namespace {

struct DotprodGroups {
  using V = Neon;
  static constexpr const char* name = "sdot";
  static constexpr int max_rows = 4;
  static constexpr int wide(int) { return 4; }
  static constexpr int64_t spill(int) { return 0; }

  using Cols = uint8x16_t;
  using Quad = int8x16_t;
  using Sum = int32x4_t;

  LOWBIT_INLINE Cols load(const uint8_t* p) { return vld1q_u8(p); }
  template <int Shift, int Mask>
  LOWBIT_INLINE int8x16_t part(Cols c) {
    if constexpr (Shift != 0) c = vshrq_n_u8(c, Shift);
    return vreinterpretq_s8_u8(vandq_u8(c, vdupq_n_u8(Mask)));
  }
  LOWBIT_INLINE Quad load_a(const int8_t* p) { return vreinterpretq_s8_s32(vdupq_n_s32(load_as<int32_t>(p))); }
  LOWBIT_INLINE void add(Sum& sum, int8x16_t part, Quad a) { sum = vdotq_s32(sum, part, a); }
  LOWBIT_INLINE Neon::I32 to_i32(Sum s) { return s; }
};

}  // namespace

constinit const KernelTable<GroupwiseRow> gemm_groupwise_rows_dotprod = GroupwiseRows<DotprodGroups>::rows;
}  // namespace lowbit
