// vpmaddwd on 512 bits, for CPUs without VNNI: four codes of eight columns, widened to 16 bits, in a register.
#include <immintrin.h>

#include "kernels/gemm/generic.h"

namespace lowbit {
namespace {

struct Avx512Dot {
  static constexpr const char* name = "vpmaddwd";
  using A = int16_t;
  static constexpr GemmOperand operand = GemmOperand::s16;
  static constexpr int group = 16, a_rows = 1, step = 1, max_rows = 12;
  static constexpr bool is_one = true;
  static constexpr bool by_block = true;
  static constexpr int wide(int rows) { return rows == 1 ? 4 : rows < 7 ? 2 : 1; }

  using Quad = __m512i;
  struct Cols {
    __m512i lo, hi;
  };
  using Acc = Cols;

  LOWBIT_INLINE Quad load_a(const char* p, int64_t) { return _mm512_set1_epi64(load_as<int64_t>(p)); }
  LOWBIT_INLINE Cols load_b(const int8_t* p) {
    const __m256i* b = reinterpret_cast<const __m256i*>(p);
    return {_mm512_cvtepi8_epi16(_mm256_loadu_si256(b)), _mm512_cvtepi8_epi16(_mm256_loadu_si256(b + 1))};
  }
  // Inline assembly, because compilers spill.
  LOWBIT_INLINE __m512i add_product(__m512i acc, __m512i a, __m512i b) {
    __m512i product;
    asm("vpmaddwd %[b], %[a], %[product]\n\tvpaddd %[product], %[acc], %[acc]"
        : [acc] "+v"(acc), [product] "=&v"(product)
        : [a] "v"(a), [b] "v"(b));
    return acc;
  }
  LOWBIT_INLINE void dot(Acc& acc, Quad a, Cols b) {
    acc.lo = add_product(acc.lo, a, b.lo);
    acc.hi = add_product(acc.hi, a, b.hi);
  }
  template <bool Add>
  LOWBIT_INLINE void store(Acc acc, int32_t* c, int64_t, const int32_t* from, int64_t) {
    // Two sums per column, in order: even ones of both registers plus odd ones.
    const __m512i even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    __m512i sum = _mm512_add_epi32(_mm512_permutex2var_epi32(acc.lo, even, acc.hi),
                                   _mm512_permutex2var_epi32(acc.lo, odd, acc.hi));
    if constexpr (Add) sum = _mm512_add_epi32(sum, _mm512_loadu_si512(from));
    _mm512_storeu_si512(c, sum);
  }
};

}  // namespace

constinit const KernelTable<GemmRow> gemm_rows_avx512 = GemmRows<Avx512Dot>::rows;
}  // namespace lowbit
