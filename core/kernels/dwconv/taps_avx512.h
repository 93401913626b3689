// Thirty-two channels, in lanes as for AVX2: vector 0 has 0-3, 8-11, 16-19 and 24-27.
#pragma once
#include "kernels/dwconv/taps.h"
#include "simd/x86_vec512.h"

namespace lowbit {

template <>
struct Taps<Avx512> {
  static constexpr int kBlock = 32, kVectors = 2;
  using Codes = __m512i;
  struct Pair {
    __m512i part[2];
  };
  LOWBIT_INLINE Codes widen(const uint8_t* p) {
    return _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  LOWBIT_INLINE Codes widen(const int8_t* p) {
    return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  LOWBIT_INLINE Pair pair(Codes a, Codes b) { return {{_mm512_unpacklo_epi16(a, b), _mm512_unpackhi_epi16(a, b)}}; }
  LOWBIT_INLINE __m512i add(__m512i acc, int v, const Pair& x, const int16_t* w) {
    acc = _mm512_add_epi32(acc, _mm512_madd_epi16(x.part[v], _mm512_loadu_si512(w + 32 * v)));
    asm("" : "+v"(acc));  // otherwise compilers keep all products and add them in a tree, which spills
    return acc;
  }
  LOWBIT_INLINE __m512i add_second(__m512i acc, int v, const Pair& x, const int16_t* w) { return add(acc, v, x, w); }
  LOWBIT_INLINE int channel(int v, int lane) { return lane / 4 * 8 + v * 4 + lane % 4; }
  LOWBIT_INLINE int place(int v, int lane, int second) { return v * 32 + lane * 2 + second; }
  LOWBIT_INLINE void store(int32_t* p, const __m512i* acc) {
    const __m512i lower = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11),
                  upper = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
    _mm512_storeu_si512(p, _mm512_permutex2var_epi64(acc[0], lower, acc[1]));
    _mm512_storeu_si512(p + 16, _mm512_permutex2var_epi64(acc[0], upper, acc[1]));
  }
  LOWBIT_INLINE void store_codes2(uint8_t* p, uint8_t* q, const __m512i* a, const __m512i* b,
                                  const Avx512::ByteShift& k, uint8_t flip) {
    const __m512i bytes = _mm512_packus_epi16(Avx512::shifted(a[0], a[1], k), Avx512::shifted(b[0], b[1], k));
    const __m512i codes = _mm512_xor_si512(_mm512_max_epu8(bytes, k.qmin), _mm512_set1_epi8(static_cast<char>(flip)));
    const __m512i ordered = Avx512::unscramble16(codes);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_castsi512_si256(ordered));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(q), _mm512_extracti64x4_epi64(ordered, 1));
  }
};

}  // namespace lowbit
