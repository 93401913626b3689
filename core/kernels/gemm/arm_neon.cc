// smull and sadalp: products of s8 in 16 bits, pairs of them added to 32. Two sums per column.
#include <arm_neon.h>

#include "kernels/gemm/generic.h"

namespace lowbit {
namespace {

struct NeonDot : DotEngine<int8_t> {
  static constexpr const char* name = "smull";
  static constexpr int max_rows = 4;
  static constexpr bool is_one = false;
  static constexpr int wide(int rows) { return rows == 1 ? 4 : 2; }

  using Quad = int8x16_t;
  using Cols = int8x16_t;
  struct Acc {
    int32x4_t lo, hi;
  };

  LOWBIT_INLINE Quad load_a(const char* p, int64_t) { return vreinterpretq_s8_s32(vdupq_n_s32(load_as<int32_t>(p))); }
  LOWBIT_INLINE Cols load_b(const int8_t* p) { return vld1q_s8(p); }
  LOWBIT_INLINE void dot(Acc& acc, Quad a, Cols b) {
    acc = {vpadalq_s16(acc.lo, vmull_s8(vget_low_s8(a), vget_low_s8(b))), vpadalq_s16(acc.hi, vmull_high_s8(a, b))};
  }
  template <bool Add>
  LOWBIT_INLINE void store(Acc acc, int32_t* c, int64_t, const int32_t* from, int64_t) {
    int32x4_t sum = vpaddq_s32(acc.lo, acc.hi);
    if constexpr (Add) sum = vaddq_s32(sum, vld1q_s32(from));
    vst1q_s32(c, sum);
  }
};

}  // namespace

constinit const KernelTable<GemmRow> gemm_rows_neon = GemmRows<NeonDot>::rows;
}  // namespace lowbit
