#include "kernels/gemm_groupwise/x86.h"
#include "simd/x86_vec256.h"

namespace lowbit {
namespace {

struct Avx2Groups : X86Groups<Avx2> {
  static constexpr const char* name = "vpmaddubsw";
  // Pairs of products are at most 2 * 15 * 128 (2 * 3 * 128), and 16 bits hold 8 (42) of them.
  static constexpr int64_t spill(int bits) { return bits == 4 ? 4 : 10; }

  LOWBIT_INLINE void add(Sum& to, __m256i part, Quad a) {
    __m256i sum = to, product;
    asm("vpmaddubsw %[a], %[b], %[product]\n\tvpaddw %[product], %[sum], %[sum]"
        : [sum] "+x"(sum), [product] "=&x"(product)
        : [a] "x"(a), [b] "x"(part));
    to = sum;
  }
  LOWBIT_INLINE Avx2::I32 to_i32(Sum s) { return _mm256_madd_epi16(s, _mm256_set1_epi16(1)); }
};

}  // namespace

constinit const KernelTable<GroupwiseRow> gemm_groupwise_rows_avx2 = GroupwiseRows<Avx2Groups>::rows;
}  // namespace lowbit
