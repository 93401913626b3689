// 16 columns per vector.
#include <arm_neon.h>

#include "kernels/gemm_binary/generic.h"

namespace lowbit {
namespace {

struct NeonBits {
  template <class V>
  using Way = BinaryCount<V>;
  static constexpr const char* way = "vcnt";
  static constexpr int width = 16, rows = 4;
  using B = uint8x16_t;
  using Code = uint8_t;

  LOWBIT_INLINE B set(uint8_t x) { return vdupq_n_u8(x); }
  LOWBIT_INLINE B spread(Code x) { return vdupq_n_u8(x); }
  LOWBIT_INLINE B load(const uint8_t* p) { return vld1q_u8(p); }
  LOWBIT_INLINE B add(B x, B y) { return vaddq_u8(x, y); }
  LOWBIT_INLINE B bit_xor(B x, B y) { return veorq_u8(x, y); }
  LOWBIT_INLINE B ones(B x) { return vcntq_u8(x); }
  LOWBIT_INLINE void widen(uint16_t* p, B x, bool add) {
    const uint16x8_t lo = add ? vld1q_u16(p) : vdupq_n_u16(0), hi = add ? vld1q_u16(p + 8) : vdupq_n_u16(0);
    vst1q_u16(p, vaddw_u8(lo, vget_low_u8(x))), vst1q_u16(p + 8, vaddw_high_u8(hi, x));
  }
};

}  // namespace

constinit const KernelTable<BinaryRow> gemm_binary_rows_neon = BinaryRows<NeonBits>::rows;
}  // namespace lowbit
