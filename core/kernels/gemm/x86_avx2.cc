#include "kernels/gemm/x86.h"
#include "simd/x86_vec256.h"

namespace lowbit {
namespace {

struct Avx2Dot : X86Wordwise<Avx2> {
  static constexpr int max_rows = 6;
  static constexpr int wide(int rows) { return rows == 1 ? 4 : rows == 2 ? 2 : 1; }

  LOWBIT_INLINE Quad load_a(const char* p, int64_t) { return _mm256_set1_epi64x(load_as<int64_t>(p)); }
  template <bool Add>
  LOWBIT_INLINE void store(Acc acc, int32_t* c, int64_t, const int32_t* from, int64_t) {
    // Columns 0 1 | 2 3 and 4 5 | 6 7: hadd leaves 0 1 4 5 | 2 3 6 7.
    store_sums<Avx2, Add>(_mm256_permute4x64_epi64(_mm256_hadd_epi32(acc.lo, acc.hi), 0xd8), c, from);
  }
};

// vpmaddubsw: pairs of products in 16 bits, then pairs of those in 32 bits. Half the work, for b that cannot saturate.
struct Avx2Pairs : X86Bytewise<Avx2> {
  static constexpr const char* name = "vpmaddubsw";
  static constexpr int wide(int rows) { return rows < 3 ? 4 : 2; }

  using Cols = const __m256i*;  // a memory operand: twelve accumulators, a, ones and a product take the registers

  LOWBIT_INLINE Cols load_b(const int8_t* p) { return reinterpret_cast<const __m256i*>(p); }
  LOWBIT_INLINE void dot(Acc& to, Quad a, Cols b) {
    __m256i acc = to, product;
    asm("vpmaddubsw %[b], %[a], %[product]\n\tvpmaddwd %[ones], %[product], %[product]\n\t"
        "vpaddd %[product], %[acc], %[acc]"
        : [acc] "+x"(acc), [product] "=&x"(product)
        : [a] "x"(a), [b] "m"(*b), [ones] "x"(_mm256_set1_epi16(1)));
    to = acc;
  }
  // Two at once, with the columns of the first in the last free register: a third fewer loads. Additions alternate with
  // multiplications, which is closer to peak on Zen 4.
  LOWBIT_INLINE void dot_two(Acc& to, Acc& also, Quad a, __m256i first, Cols second) {
    __m256i acc = to, acc2 = also, product;
    asm("vpmaddubsw %[first], %[a], %[product]\n\tvpmaddwd %[ones], %[product], %[product]\n\t"
        "vpaddd %[product], %[acc], %[acc]\n\tvpmaddubsw %[second], %[a], %[a]\n\t"
        "vpmaddwd %[ones], %[a], %[a]\n\tvpaddd %[a], %[acc2], %[acc2]"
        : [acc] "+x"(acc), [acc2] "+x"(acc2), [a] "+x"(a), [product] "=&x"(product)
        : [first] "x"(first), [second] "m"(*second), [ones] "x"(_mm256_set1_epi16(1)));
    to = acc, also = acc2;
  }
};

// The same with two pairs added in 16 bits, for b of which no four products saturate: three multiplications instead of
// four.
struct Avx2Fours : Avx2Pairs {
  static constexpr const char* name = "vpmaddubsw, twice";
  static constexpr int step = 2, max_rows = 5;

  struct Quad {
    __m256i even, odd;
  };

  LOWBIT_INLINE Quad load_a(const char* p, int64_t stride) {
    return {Avx2Pairs::load_a(p, stride), Avx2Pairs::load_a(p + 4, stride)};
  }
  LOWBIT_INLINE void dot(Acc& to, Quad a, Cols b) {
    __m256i acc = to, product, other;
    asm("vpmaddubsw %[even_b], %[even], %[product]\n\tvpmaddubsw %[odd_b], %[odd], %[other]\n\t"
        "vpaddw %[other], %[product], %[product]\n\tvpmaddwd %[ones], %[product], %[product]\n\t"
        "vpaddd %[product], %[acc], %[acc]"
        : [acc] "+x"(acc), [product] "=&x"(product), [other] "=&x"(other)
        : [even] "x"(a.even), [odd] "x"(a.odd), [even_b] "m"(b[0]), [odd_b] "m"(b[kQuadBytes / 32]),
          [ones] "x"(_mm256_set1_epi16(1)));
    to = acc;
  }
  LOWBIT_INLINE void dot_two(Acc& to, Acc& also, Quad a, __m256i first, Cols second) {
    __m256i acc = to, acc2 = also, product, other;
    asm("vpmaddubsw %[first], %[even], %[product]\n\tvpmaddubsw %[first_odd], %[odd], %[other]\n\t"
        "vpmaddubsw %[second], %[even], %[even]\n\tvpmaddubsw %[second_odd], %[odd], %[odd]\n\t"
        "vpaddw %[other], %[product], %[product]\n\tvpaddw %[odd], %[even], %[even]\n\t"
        "vpmaddwd %[ones], %[product], %[product]\n\tvpmaddwd %[ones], %[even], %[even]\n\t"
        "vpaddd %[product], %[acc], %[acc]\n\tvpaddd %[even], %[acc2], %[acc2]"
        : [acc] "+x"(acc), [acc2] "+x"(acc2), [even] "+x"(a.even), [odd] "+x"(a.odd), [product] "=&x"(product),
          [other] "=&x"(other)
        : [first] "x"(first), [first_odd] "m"(second[kQuadBytes / 32 - 1]), [second] "m"(*second),
          [second_odd] "m"(second[kQuadBytes / 32]), [ones] "x"(_mm256_set1_epi16(1)));
    to = acc, also = acc2;
  }
};

}  // namespace

constinit const KernelTable<GemmRow> gemm_rows_avx2 = GemmRows<Avx2Dot, Avx2Pairs, Avx2Fours>::rows;
}  // namespace lowbit
