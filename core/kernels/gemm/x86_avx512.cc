// For CPUs without VNNI.
#include "kernels/gemm/x86.h"
#include "simd/x86_vec512.h"

namespace lowbit {
namespace {

struct Avx512Dot : X86Wordwise<Avx512> {
  static constexpr int max_rows = 12;
  static constexpr int wide(int rows) { return rows == 1 ? 4 : rows < 7 ? 2 : 1; }

  LOWBIT_INLINE Quad load_a(const char* p, int64_t) { return _mm512_set1_epi64(load_as<int64_t>(p)); }
  template <bool Add>
  LOWBIT_INLINE void store(Acc acc, int32_t* c, int64_t, const int32_t* from, int64_t) {
    // In order: even sums of both registers plus odd ones.
    const __m512i even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    store_sums<Avx512, Add>(_mm512_add_epi32(_mm512_permutex2var_epi32(acc.lo, even, acc.hi),
                                             _mm512_permutex2var_epi32(acc.lo, odd, acc.hi)),
                            c, from);
  }
};

}  // namespace

constinit const KernelTable<GemmRow> gemm_rows_avx512 = GemmRows<Avx512Dot>::rows;
}  // namespace lowbit
