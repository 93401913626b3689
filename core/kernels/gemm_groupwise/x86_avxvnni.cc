#include "kernels/gemm_groupwise/x86.h"
#include "simd/x86_vec256.h"

namespace lowbit {
namespace {

struct AvxVnniGroups : X86Groups<Avx2> {
  static constexpr const char* name = "vpdpbusd, 256 bits";
  static constexpr int64_t spill(int) { return 0; }

  LOWBIT_INLINE void add(Sum& sum, __m256i part, Quad a) {  // inline assembly, as in kernels/gemm
    asm("%{vex%} vpdpbusd %[a], %[part], %[sum]" : [sum] "+x"(sum) : [part] "x"(part), [a] "x"(a));
  }
  LOWBIT_INLINE Avx2::I32 to_i32(Sum s) { return s; }
};

}  // namespace

constinit const KernelTable<GroupwiseRow> gemm_groupwise_rows_avxvnni = GroupwiseRows<AvxVnniGroups>::rows;
}  // namespace lowbit
