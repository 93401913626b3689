// Shared by AVX-512 with and without VNNI: sixteen columns per register.
#pragma once
#include "kernels/gemm_groupwise/generic.h"
#include "simd/x86_vec512.h"

namespace lowbit {

struct ZmmGroups {
  using V = Avx512;
  static constexpr int max_rows = 6;
  static constexpr int wide(int rows) { return rows == 1 ? 4 : 2; }

  using Cols = __m512i;
  using Quad = __m512i;
  using Sum = __m512i;

  LOWBIT_INLINE Cols load(const uint8_t* p) { return _mm512_loadu_si512(p); }
  template <int Shift, int Mask>
  LOWBIT_INLINE __m512i part(Cols c) {
    return _mm512_and_si512(Shift == 0 ? c : _mm512_srli_epi16(c, Shift), _mm512_set1_epi8(Mask));
  }
  LOWBIT_INLINE Quad load_a(const int8_t* p) {
    int four;
    std::memcpy(&four, p, 4);
    return _mm512_set1_epi32(four);
  }
  LOWBIT_INLINE Sum none() { return _mm512_setzero_si512(); }
};

}  // namespace lowbit
