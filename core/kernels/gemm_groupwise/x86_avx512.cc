#include "kernels/gemm_groupwise/x86.h"
#include "simd/x86_vec512.h"

namespace lowbit {
namespace {

struct Avx512Groups : X86Groups<Avx512> {
  static constexpr const char* name = "vpmaddubsw";
  static constexpr int64_t spill(int bits) { return bits == 4 ? 4 : 10; }  // as for AVX2

  LOWBIT_INLINE void add(Sum& sum, __m512i part, Quad a) { sum = _mm512_add_epi16(sum, _mm512_maddubs_epi16(part, a)); }
  LOWBIT_INLINE Avx512::I32 to_i32(Sum s) { return _mm512_madd_epi16(s, _mm512_set1_epi16(1)); }
};

}  // namespace

constinit const KernelTable<GroupwiseRow> gemm_groupwise_rows_avx512 = GroupwiseRows<Avx512Groups>::rows;
}  // namespace lowbit
