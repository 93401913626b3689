// Loops of the benchmarks' own that bound what this CPU can do, to hold lowbit's probe against. AVX2 and FMA.
#include <immintrin.h>
#include <stdint.h>

float peak_fma(int64_t rounds) {  // 2 * 8 * 12 operations a round
  __m256 a = _mm256_set1_ps(0.9999f), b = _mm256_set1_ps(1e-5f), s[12];
  for (int k = 0; k < 12; ++k) s[k] = _mm256_set1_ps((float)k);
  for (int64_t r = 0; r < rounds; ++r)
#pragma GCC unroll 12
    for (int k = 0; k < 12; ++k) s[k] = _mm256_fmadd_ps(s[k], a, b);
  for (int k = 1; k < 12; ++k) s[0] = _mm256_add_ps(s[0], s[k]);
  return _mm256_cvtss_f32(s[0]);
}

int32_t peak_dot(int64_t rounds) {  // 2 * 32 * 6 operations a round
  __m256i s[6], w[6], one = _mm256_set1_epi16(1), x = _mm256_set1_epi8(3), flip = _mm256_set1_epi8(5);
  for (int k = 0; k < 6; ++k) {
    s[k] = _mm256_setzero_si256();
    w[k] = _mm256_set1_epi8((char)(k + 1));
  }
  for (int64_t r = 0; r < rounds; ++r) {
    x = _mm256_xor_si256(x, flip);  // else the products would be computed once
#pragma GCC unroll 6
    for (int k = 0; k < 6; ++k)
      s[k] = _mm256_add_epi32(s[k], _mm256_madd_epi16(_mm256_maddubs_epi16(x, w[k]), one));
  }
  for (int k = 1; k < 6; ++k) s[0] = _mm256_add_epi32(s[0], s[k]);
  return _mm256_extract_epi32(s[0], 0);
}

int64_t peak_read(const int64_t* p, int64_t n, int64_t repeats) {  // n numbers of 8 bytes, a multiple of 128
  const int64_t most = 1 << 14;  // 128 KiB at a time, of which four places at once
  __m256i s[8];
  for (int k = 0; k < 8; ++k) s[k] = _mm256_setzero_si256();
  for (int64_t r = 0; r < repeats; ++r) {
    for (const int64_t *q = p, *end = p + n; q < end; q += most) {
      const int64_t quarter = (end - q < most ? end - q : most) / 4;
      for (int64_t i = 0; i < quarter; i += 8)
#pragma GCC unroll 8
        for (int k = 0; k < 8; ++k)
          s[k] = _mm256_or_si256(s[k], _mm256_loadu_si256((const __m256i*)(q + k / 2 * quarter + i + k % 2 * 4)));
    }
    __asm__ volatile("" ::: "memory");  // else one pass would do for all
  }
  for (int k = 1; k < 8; ++k) s[0] = _mm256_or_si256(s[0], s[k]);
  return _mm256_extract_epi64(s[0], 0);
}
