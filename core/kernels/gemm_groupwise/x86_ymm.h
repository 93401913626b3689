// Shared by AVX2 with and without VNNI: eight columns per register.
#pragma once
#include "kernels/gemm_groupwise/generic.h"
#include "simd/x86_vec256.h"

namespace lowbit {

struct YmmGroups {
  using V = Avx2;
  static constexpr int max_rows = 4;
  static constexpr int wide(int rows) { return rows == 1 ? 4 : 2; }

  using Cols = __m256i;
  using Quad = __m256i;
  using Sum = __m256i;

  LOWBIT_INLINE Cols load(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
  template <int Shift, int Mask>
  LOWBIT_INLINE __m256i part(Cols c) {
    return _mm256_and_si256(Shift == 0 ? c : _mm256_srli_epi16(c, Shift), _mm256_set1_epi8(Mask));
  }
  LOWBIT_INLINE Quad load_a(const int8_t* p) {
    int four;
    std::memcpy(&four, p, 4);
    return _mm256_set1_epi32(four);
  }
  LOWBIT_INLINE Sum none() { return _mm256_setzero_si256(); }
};

}  // namespace lowbit
