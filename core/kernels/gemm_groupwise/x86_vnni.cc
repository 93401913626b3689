#include "kernels/gemm_groupwise/x86.h"
#include "simd/x86_vec512.h"

namespace lowbit {
namespace {

struct VnniGroups : X86Groups<Avx512> {
  static constexpr const char* name = "vpdpbusd";

  LOWBIT_INLINE void add(Sum& sum, __m512i part, Quad a) {  // inline assembly, as in kernels/gemm
    asm("vpdpbusd %[a], %[part], %[sum]" : [sum] "+v"(sum) : [part] "v"(part), [a] "v"(a));
  }
};

}  // namespace

constinit const KernelTable<GroupwiseRow> gemm_groupwise_rows_vnni = GroupwiseRows<VnniGroups>::rows;
}  // namespace lowbit
