#include "kernels/gemm_groupwise/arm.h"

namespace lowbit {
namespace {

struct DotprodGroups : ArmGroups {
  static constexpr const char* name = "sdot";
  static constexpr int wide(int) { return 4; }

  using Sum = int32x4_t;

  LOWBIT_INLINE void add(Sum& sum, int8x16_t part, Quad a) { sum = vdotq_s32(sum, part, a); }
  LOWBIT_INLINE Neon::I32 to_i32(Sum s) { return s; }
};

}  // namespace

constinit const KernelTable<GroupwiseRow> gemm_groupwise_rows_dotprod = GroupwiseRows<DotprodGroups>::rows;
}  // namespace lowbit
