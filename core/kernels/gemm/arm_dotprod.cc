// sdot: four products of s8 added to 32 bits, four columns per register.
#include <arm_neon.h>

#include "kernels/gemm/generic.h"

namespace lowbit {
namespace {

struct DotprodDot : DotEngine<int8_t> {
  static constexpr const char* name = "sdot";
  static constexpr int max_rows = 6;
  static constexpr int wide(int) { return 4; }

  using Quad = int8x16_t;
  using Cols = int8x16_t;
  using Acc = int32x4_t;

  LOWBIT_INLINE Quad load_a(const char* p, int64_t) { return vreinterpretq_s8_s32(vdupq_n_s32(load_as<int32_t>(p))); }
  LOWBIT_INLINE Cols load_b(const int8_t* p) { return vld1q_s8(p); }
  LOWBIT_INLINE void dot(Acc& acc, Quad a, Cols b) { acc = vdotq_s32(acc, b, a); }
  template <bool Add>
  LOWBIT_INLINE void store(Acc acc, int32_t* c, int64_t, const int32_t* from, int64_t) {
    if constexpr (Add) acc = vaddq_s32(acc, vld1q_s32(from));
    vst1q_s32(c, acc);
  }
};

}  // namespace

constinit const KernelTable<GemmRow> gemm_rows_dotprod = GemmRows<DotprodDot>::rows;
}  // namespace lowbit
