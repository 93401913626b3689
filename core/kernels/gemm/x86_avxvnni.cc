// vpdpbusd on 256 bits, for CPUs that have it without AVX-512: eight columns per register.
#include <immintrin.h>

#include "kernels/gemm/generic.h"

namespace lowbit {
namespace {

struct AvxVnniDot {
  static constexpr const char* name = "vpdpbusd, 256 bits";
  using A = uint8_t;
  static constexpr GemmOperand operand = GemmOperand::u8;
  static constexpr int group = 8, a_rows = 1, step = 1, max_rows = 6;
  static constexpr bool is_one = true;
  static constexpr bool by_block = true, by_pairs = true;
  static constexpr int wide(int rows) { return rows == 1 ? 4 : 2; }
  static constexpr int chains(int rows) { return rows < 4 ? 2 : 1; }  // twelve of sixteen registers are accumulators

  using Quad = __m256i;
  using Cols = __m256i;
  using Acc = __m256i;

  LOWBIT_INLINE Quad load_a(const char* p, int64_t) { return _mm256_set1_epi32(load_as<int32_t>(p)); }
  LOWBIT_INLINE Cols load_b(const int8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
  LOWBIT_INLINE Acc sum(Acc x, Acc y) { return _mm256_add_epi32(x, y); }
  LOWBIT_INLINE Acc start(const int32_t* from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); }
  LOWBIT_INLINE void dot(Acc& acc, Quad a, Cols b) {  // inline assembly, as for 512 bits
    asm("%{vex%} vpdpbusd %[b], %[a], %[acc]" : [acc] "+x"(acc) : [a] "x"(a), [b] "x"(b));
  }
  template <bool Add>
  LOWBIT_INLINE void store(Acc acc, int32_t* c, int64_t, const int32_t* from, int64_t) {
    if constexpr (Add) acc = _mm256_add_epi32(acc, start(from));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(c), acc);
  }
};

}  // namespace

constinit const KernelTable<GemmRow> gemm_rows_avxvnni = GemmRows<AvxVnniDot>::rows;
}  // namespace lowbit
