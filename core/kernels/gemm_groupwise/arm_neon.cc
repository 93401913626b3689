#include "kernels/gemm_groupwise/arm.h"

namespace lowbit {
namespace {

struct NeonGroups : ArmGroups {
  static constexpr const char* name = "smull";
  static constexpr int wide(int) { return 2; }

  struct Sum {  // two sums per column
    int32x4_t lo, hi;
  };

  LOWBIT_INLINE void add(Sum& sum, int8x16_t part, Quad a) {
    sum.lo = vpadalq_s16(sum.lo, vmull_s8(vget_low_s8(part), vget_low_s8(a)));
    sum.hi = vpadalq_s16(sum.hi, vmull_high_s8(part, a));
  }
  LOWBIT_INLINE Neon::I32 to_i32(const Sum& s) { return vpaddq_s32(s.lo, s.hi); }
};

}  // namespace

constinit const KernelTable<GroupwiseRow> gemm_groupwise_rows_neon = GroupwiseRows<NeonGroups>::rows;
}  // namespace lowbit
