#include "kernels/gemm_groupwise/x86.h"
#include "simd/x86_vec256.h"

namespace lowbit {
namespace {

struct AvxVnniGroups : X86Groups<Avx2> {
  static constexpr const char* name = "vpdpbusd, 256 bits";

  LOWBIT_INLINE void add(Sum& sum, __m256i part, Quad a) {  // inline assembly, as in kernels/gemm
    asm("%{vex%} vpdpbusd %[a], %[part], %[sum]" : [sum] "+x"(sum) : [part] "x"(part), [a] "x"(a));
  }
};

}  // namespace

constinit const KernelTable<GroupwiseRow> gemm_groupwise_rows_avxvnni = GroupwiseRows<AvxVnniGroups>::rows;
}  // namespace lowbit
