// vpdpbusd: four products of a u8 row and s8 columns added to 32 bits, sixteen columns per register.
#include <immintrin.h>

#include "kernels/gemm/generic.h"

namespace lowbit {
namespace {

struct VnniDot {
  static constexpr const char* name = "vpdpbusd";
  using A = uint8_t;
  static constexpr GemmOperand operand = GemmOperand::u8;
  static constexpr int group = 16, a_rows = 1, step = 1, max_rows = 6;
  static constexpr bool is_one = true;
  static constexpr bool by_block = true, by_pairs = true;
  static constexpr int wide(int) { return 4; }
  static constexpr int chains(int) { return 2; }

  using Quad = __m512i;
  using Cols = __m512i;
  using Acc = __m512i;

  LOWBIT_INLINE Quad load_a(const char* p, int64_t) { return _mm512_set1_epi32(load_as<int32_t>(p)); }
  LOWBIT_INLINE Cols load_b(const int8_t* p) { return _mm512_loadu_si512(p); }
  LOWBIT_INLINE Acc sum(Acc x, Acc y) { return _mm512_add_epi32(x, y); }
  LOWBIT_INLINE Acc start(const int32_t* from) { return _mm512_loadu_si512(from); }
  // Inline assembly: with the intrinsic, GCC spills half of the accumulators.
  LOWBIT_INLINE void dot(Acc& acc, Quad a, Cols b) {
    asm("vpdpbusd %[b], %[a], %[acc]" : [acc] "+v"(acc) : [a] "v"(a), [b] "v"(b));
  }
  template <bool Add>
  LOWBIT_INLINE void store(Acc acc, int32_t* c, int64_t, const int32_t* from, int64_t) {
    if constexpr (Add) acc = _mm512_add_epi32(acc, _mm512_loadu_si512(from));
    _mm512_storeu_si512(c, acc);
  }
};

}  // namespace

constinit const KernelTable<GemmRow> gemm_rows_vnni = GemmRows<VnniDot>::rows;
}  // namespace lowbit
