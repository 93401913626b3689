// smmla: two rows by two columns, eight products each, in one instruction. Two quads of four columns are zipped
// to eight codes of two columns, twice.
#include <arm_neon.h>

#include "kernels/gemm/generic.h"

namespace lowbit {
namespace {

struct I8mmDot : DotEngine<int8_t> {
  static constexpr const char* name = "smmla";
  static constexpr int a_rows = 2, step = 2, max_rows = 6;
  static constexpr int wide(int) { return 4; }

  using Quad = int8x16_t;  // eight codes of one row, eight of the next
  struct Cols {
    int8x16_t lo, hi;  // eight codes of columns 0 and 1, and of 2 and 3
  };
  struct Acc {
    int32x4_t lo, hi;  // row 0: columns 0 1, row 1: columns 0 1; likewise 2 3
  };

  LOWBIT_INLINE Quad load_a(const char* p, int64_t stride) {
    const int8_t* a = reinterpret_cast<const int8_t*>(p);
    return vcombine_s8(vld1_s8(a), vld1_s8(a + stride));
  }
  LOWBIT_INLINE Cols load_b(const int8_t* p) {
    const int32x4_t first = vreinterpretq_s32_s8(vld1q_s8(p)), second = vreinterpretq_s32_s8(vld1q_s8(p + kQuadBytes));
    return {vreinterpretq_s8_s32(vzip1q_s32(first, second)), vreinterpretq_s8_s32(vzip2q_s32(first, second))};
  }
  LOWBIT_INLINE void dot(Acc& acc, Quad a, Cols b) { acc = {vmmlaq_s32(acc.lo, a, b.lo), vmmlaq_s32(acc.hi, a, b.hi)}; }
  template <bool Add>
  LOWBIT_INLINE void store(Acc acc, int32_t* c, int64_t stride, const int32_t* from, int64_t from_stride) {
    int32x4_t row0 = vcombine_s32(vget_low_s32(acc.lo), vget_low_s32(acc.hi)),
              row1 = vcombine_s32(vget_high_s32(acc.lo), vget_high_s32(acc.hi));
    if constexpr (Add) {
      row0 = vaddq_s32(row0, vld1q_s32(from));
      row1 = vaddq_s32(row1, vld1q_s32(from + from_stride));
    }
    vst1q_s32(c, row0);
    vst1q_s32(c + stride, row1);
  }
};

}  // namespace

constinit const KernelTable<GemmRow> gemm_rows_i8mm = GemmRows<I8mmDot>::rows;
}  // namespace lowbit
