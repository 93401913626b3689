// Sixteen channels. Interleaving works within 128-bit lanes: vector 0 has channels 0-3 and 8-11, vector 1 the others.
// Packing restores the order.
#pragma once
#include "kernels/dwconv/taps.h"
#include "simd/x86_vec256.h"

namespace lowbit {

template <>
struct Taps<Avx2> {
  static constexpr int kBlock = 16, kVectors = 2;
  using Codes = __m256i;
  struct Pair {
    __m256i part[2];
  };
  LOWBIT_INLINE Codes widen(const uint8_t* p) {
    return _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  LOWBIT_INLINE Codes widen(const int8_t* p) {
    return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  LOWBIT_INLINE Pair pair(Codes a, Codes b) { return {{_mm256_unpacklo_epi16(a, b), _mm256_unpackhi_epi16(a, b)}}; }
  LOWBIT_INLINE __m256i add(__m256i acc, int v, const Pair& x, const int16_t* w) {
    const __m256i weights = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(w + 16 * v));
    acc = _mm256_add_epi32(acc, _mm256_madd_epi16(x.part[v], weights));
    asm("" : "+x"(acc));  // otherwise compilers keep all products and add them in a tree, which spills
    return acc;
  }
  LOWBIT_INLINE __m256i add_second(__m256i acc, int v, const Pair& x, const int16_t* w) { return add(acc, v, x, w); }
  LOWBIT_INLINE int channel(int v, int lane) { return lane / 4 * 8 + v * 4 + lane % 4; }
  LOWBIT_INLINE int place(int v, int lane, int second) { return v * 16 + lane * 2 + second; }
  LOWBIT_INLINE void store(int32_t* p, const __m256i* acc) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute2x128_si256(acc[0], acc[1], 0x20));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), _mm256_permute2x128_si256(acc[0], acc[1], 0x31));
  }
  LOWBIT_INLINE void store_codes2(uint8_t* p, uint8_t* q, const __m256i* a, const __m256i* b, const Avx2::ByteShift& k,
                                  uint8_t flip) {
    const __m256i bytes = _mm256_packus_epi16(Avx2::shifted(a[0], a[1], k), Avx2::shifted(b[0], b[1], k));
    const __m256i codes = _mm256_xor_si256(_mm256_max_epu8(bytes, k.qmin), _mm256_set1_epi8(static_cast<char>(flip)));
    const __m256i ordered = _mm256_permute4x64_epi64(codes, 0xd8);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(ordered));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(q), _mm256_extracti128_si256(ordered, 1));
  }
};

}  // namespace lowbit
