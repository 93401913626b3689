// AVX2 + FMA + F16C: eight lanes.
#pragma once
#include "simd/x86_vec.h"

namespace lowbit {

struct Ymm {
  static constexpr int width = 8;
  using F32 = __m256;
  using Half = __m256d;
  using I32 = __m256i;
  using U32 = __v8su;
  using U16 = __v16hu;
  using S16 = __v16hi;

  LOWBIT_INLINE F32 load(const float* p) { return _mm256_loadu_ps(p); }
  LOWBIT_INLINE F32 load(const half_t* p) { return _mm256_cvtph_ps(load_half(p)); }
  LOWBIT_INLINE Half load(const double* p) { return _mm256_loadu_pd(p); }
  LOWBIT_INLINE __m128i load_half(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
  LOWBIT_INLINE I32 load_bytes(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
  LOWBIT_INLINE I32 load_i32(const int32_t* p) { return load_bytes(p); }
  LOWBIT_INLINE void store(float* p, F32 x) { _mm256_storeu_ps(p, x); }
  LOWBIT_INLINE void store(half_t* p, F32 x) { store_half(p, _mm256_cvtps_ph(x, kToNearest)); }
  LOWBIT_INLINE void store(double* p, Half x) { _mm256_storeu_pd(p, x); }
  LOWBIT_INLINE void store_half(void* p, __m128i v) { _mm_storeu_si128(static_cast<__m128i*>(p), v); }
  LOWBIT_INLINE void store_bytes(void* p, __m256i v) { _mm256_storeu_si256(static_cast<__m256i*>(p), v); }
  LOWBIT_INLINE void store_i32(int32_t* p, I32 i) { store_bytes(p, i); }
  LOWBIT_INLINE void stream(float* p, F32 x) { _mm256_stream_ps(p, x); }
  LOWBIT_INLINE void stream(double* p, Half x) { _mm256_stream_pd(p, x); }
  LOWBIT_INLINE F32 set(float x) { return _mm256_set1_ps(x); }
  LOWBIT_INLINE Half set(double x) { return _mm256_set1_pd(x); }
  LOWBIT_INLINE I32 set_i32(int32_t i) { return _mm256_set1_epi32(i); }
  LOWBIT_INLINE I32 set16(int i) { return _mm256_set1_epi16(static_cast<int16_t>(i)); }
  LOWBIT_INLINE I32 set8(int i) { return _mm256_set1_epi8(static_cast<char>(i)); }

  LOWBIT_INLINE F32 abs(F32 x) { return _mm256_andnot_ps(set(-0.0f), x); }
  LOWBIT_INLINE Half abs(Half x) { return _mm256_andnot_pd(set(-0.0), x); }
  LOWBIT_INLINE F32 min(F32 x, F32 y) { return _mm256_min_ps(x, y); }
  LOWBIT_INLINE Half min(Half x, Half y) { return _mm256_min_pd(x, y); }
  LOWBIT_INLINE F32 max(F32 x, F32 y) { return _mm256_max_ps(x, y); }
  LOWBIT_INLINE Half max(Half x, Half y) { return _mm256_max_pd(x, y); }
  LOWBIT_INLINE F32 fma(F32 x, F32 y, F32 z) { return _mm256_fmadd_ps(x, y, z); }
  LOWBIT_INLINE Half fma(Half x, Half y, Half z) { return _mm256_fmadd_pd(x, y, z); }
  LOWBIT_INLINE F32 round(F32 x) { return _mm256_round_ps(x, kToNearest); }
  LOWBIT_INLINE Half round(Half x) { return _mm256_round_pd(x, kToNearest); }

  // Comparisons give lanes of ones or zeros.
  LOWBIT_INLINE F32 less(F32 x, F32 y) { return _mm256_cmp_ps(x, y, _CMP_LT_OQ); }
  LOWBIT_INLINE Half less(Half x, Half y) { return _mm256_cmp_pd(x, y, _CMP_LT_OQ); }
  LOWBIT_INLINE F32 equal(F32 x, F32 y) { return _mm256_cmp_ps(x, y, _CMP_EQ_OQ); }
  LOWBIT_INLINE Half equal(Half x, Half y) { return _mm256_cmp_pd(x, y, _CMP_EQ_OQ); }
  LOWBIT_INLINE F32 inside(F32 x, F32 lo, F32 hi) {
    return _mm256_and_ps(_mm256_cmp_ps(x, lo, _CMP_GE_OQ), _mm256_cmp_ps(x, hi, _CMP_LE_OQ));
  }
  LOWBIT_INLINE Half inside(Half x, Half lo, Half hi) {
    return _mm256_and_pd(_mm256_cmp_pd(x, lo, _CMP_GE_OQ), _mm256_cmp_pd(x, hi, _CMP_LE_OQ));
  }
  LOWBIT_INLINE F32 where(F32 mask, F32 v) { return _mm256_and_ps(mask, v); }
  LOWBIT_INLINE Half where(Half mask, Half v) { return _mm256_and_pd(mask, v); }
  LOWBIT_INLINE F32 where_nan(F32 x, F32 v, F32 other) {
    return _mm256_blendv_ps(other, v, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  }
  LOWBIT_INLINE uint32_t mask_bits(F32 mask) { return static_cast<uint32_t>(_mm256_movemask_ps(mask)); }
  LOWBIT_INLINE uint32_t mask_bits(Half mask) { return static_cast<uint32_t>(_mm256_movemask_pd(mask)); }
  LOWBIT_INLINE bool all(F32 mask) { return mask_bits(mask) == 0xff; }
  LOWBIT_INLINE bool all(Half lo, Half hi) { return mask_bits(_mm256_and_pd(lo, hi)) == 0xf; }
  LOWBIT_INLINE uint32_t equal_bits(F32 even, F32 odd, F32 other_even, F32 other_odd) {  // in the order of memory
    const I32 each = odd16((I32)equal(even, other_even), (I32)equal(odd, other_odd));
    const uint32_t bits = static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_packs_epi16(each, each)));
    return (bits & 0xff) | (bits >> 8 & 0xff00);
  }
  using Flag = __m256;
  LOWBIT_INLINE Flag no_nan() { return _mm256_setzero_ps(); }
  LOWBIT_INLINE Flag note_nan(Flag f, F32 x, F32 y) { return _mm256_or_ps(f, _mm256_cmp_ps(x, y, _CMP_UNORD_Q)); }
  LOWBIT_INLINE Flag note_nan(Flag f, Half x, Half y, Half u, Half v) {
    const Half nan = _mm256_or_pd(_mm256_cmp_pd(x, y, _CMP_UNORD_Q), _mm256_cmp_pd(u, v, _CMP_UNORD_Q));
    return _mm256_or_ps(f, (F32)nan);
  }
  LOWBIT_INLINE bool any(Flag f) { return _mm256_movemask_ps(f) != 0; }
  LOWBIT_INLINE I32 positive(F32 x) { return _mm256_srli_epi32((I32)less(_mm256_setzero_ps(), x), 31); }
  LOWBIT_INLINE I32 positive(Half x, Half y) {
    const Half zero = _mm256_setzero_pd();
    const I32 joined = (I32)_mm256_shuffle_ps((F32)less(zero, x), (F32)less(zero, y), 0x88);
    return _mm256_srli_epi32(unscramble16(joined), 31);
  }

  LOWBIT_INLINE I32 round_i32(F32 x) { return _mm256_cvtps_epi32(x); }
  LOWBIT_INLINE I32 round_i32(Half x, Half y) { return _mm256_set_m128i(_mm256_cvtpd_epi32(y), _mm256_cvtpd_epi32(x)); }
  LOWBIT_INLINE F32 to_f32(I32 i) { return _mm256_cvtepi32_ps(i); }
  LOWBIT_INLINE __m128i lower(I32 i) { return _mm256_castsi256_si128(i); }
  LOWBIT_INLINE __m128i upper(I32 i) { return _mm256_extracti128_si256(i, 1); }
  LOWBIT_INLINE Half lower_half(I32 i) { return _mm256_cvtepi32_pd(lower(i)); }
  LOWBIT_INLINE Half upper_half(I32 i) { return _mm256_cvtepi32_pd(upper(i)); }
  LOWBIT_INLINE Half lower_half(F32 x) { return _mm256_cvtps_pd(_mm256_castps256_ps128(x)); }
  LOWBIT_INLINE Half upper_half(F32 x) { return _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1)); }

  LOWBIT_INLINE I32 where_negative(I32 i, I32 v) { return _mm256_srai_epi32(i, 31) & v; }
  LOWBIT_INLINE I32 max(I32 i, I32 j) { return _mm256_max_epi32(i, j); }
  LOWBIT_INLINE I32 min(I32 i, I32 j) { return _mm256_min_epi32(i, j); }
  LOWBIT_INLINE I32 max_u32(I32 i, I32 j) { return _mm256_max_epu32(i, j); }

  LOWBIT_INLINE I32 load_codes(const int8_t* p) {
    return _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  }
  LOWBIT_INLINE I32 load_codes(const uint8_t* p) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  }
  LOWBIT_INLINE I32 load_codes(const int16_t* p) { return _mm256_cvtepi16_epi32(load_half(p)); }
  LOWBIT_INLINE I32 load_codes(const uint16_t* p) { return _mm256_cvtepu16_epi32(load_half(p)); }
  LOWBIT_INLINE I32 load_words(const int8_t* p) { return _mm256_cvtepi8_epi16(load_half(p)); }
  LOWBIT_INLINE I32 load_words(const uint8_t* p) { return _mm256_cvtepu8_epi16(load_half(p)); }
  LOWBIT_INLINE __m128i to_16(I32 i) { return _mm_packs_epi32(lower(i), upper(i)); }
  LOWBIT_INLINE void store_codes(int8_t* p, I32 i) {
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(to_16(i), to_16(i)));
  }
  LOWBIT_INLINE void store_codes(uint8_t* p, I32 i) {
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packus_epi16(to_16(i), to_16(i)));
  }
  LOWBIT_INLINE void store_codes(int16_t* p, I32 i) { store_half(p, to_16(i)); }
  LOWBIT_INLINE void store_codes(uint16_t* p, I32 i) { store_half(p, _mm_packus_epi32(lower(i), upper(i))); }

  // Lanes of 8 and 16 bits. Packing saturates.
  LOWBIT_INLINE I32 pack8(int8_t, I32 lo, I32 hi) { return _mm256_packs_epi16(lo, hi); }
  LOWBIT_INLINE I32 pack8(uint8_t, I32 lo, I32 hi) { return _mm256_packus_epi16(lo, hi); }
  LOWBIT_INLINE I32 pack16(int16_t, I32 lo, I32 hi) { return _mm256_packs_epi32(lo, hi); }
  LOWBIT_INLINE I32 pack16(uint16_t, I32 lo, I32 hi) { return _mm256_packus_epi32(lo, hi); }
  LOWBIT_INLINE I32 unscramble8(I32 v) {
    return _mm256_permutevar8x32_epi32(v, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  }
  LOWBIT_INLINE I32 unscramble16(I32 v) { return _mm256_permute4x64_epi64(v, 0xd8); }
  LOWBIT_INLINE I32 scramble16(I32 v) { return _mm256_permute4x64_epi64(v, 0xd8); }
  LOWBIT_INLINE I32 lower8(I32 v, I32 w) { return _mm256_unpacklo_epi8(v, w); }
  LOWBIT_INLINE I32 upper8(I32 v, I32 w) { return _mm256_unpackhi_epi8(v, w); }
  LOWBIT_INLINE I32 lower16(I32 v, I32 w) { return _mm256_unpacklo_epi16(v, w); }
  LOWBIT_INLINE I32 upper16(I32 v, I32 w) { return _mm256_unpackhi_epi16(v, w); }
  LOWBIT_INLINE I32 lower_lanes(I32 v, I32 w) { return _mm256_permute2x128_si256(v, w, 0x20); }
  LOWBIT_INLINE I32 upper_lanes(I32 v, I32 w) { return _mm256_permute2x128_si256(v, w, 0x31); }
  LOWBIT_INLINE I32 odd16(I32 even, I32 odd) { return _mm256_blend_epi16(even, odd, 0xaa); }
  LOWBIT_INLINE I32 max8(int8_t, I32 v, I32 w) { return _mm256_max_epi8(v, w); }
  LOWBIT_INLINE I32 max8(uint8_t, I32 v, I32 w) { return _mm256_max_epu8(v, w); }
  LOWBIT_INLINE I32 min8(int8_t, I32 v, I32 w) { return _mm256_min_epi8(v, w); }
  LOWBIT_INLINE I32 min8(uint8_t, I32 v, I32 w) { return _mm256_min_epu8(v, w); }
  LOWBIT_INLINE I32 add_saturating16(I32 v, I32 w) { return _mm256_adds_epi16(v, w); }
  LOWBIT_INLINE I32 add_products8(I32 u8, I32 s8) { return _mm256_maddubs_epi16(u8, s8); }
  LOWBIT_INLINE I32 add_products16(I32 v, I32 w) { return _mm256_madd_epi16(v, w); }
  LOWBIT_INLINE I32 high_product16(I32 v, I32 w) { return _mm256_mulhi_epi16(v, w); }
  LOWBIT_INLINE I32 scale16(I32 v, I32 by) { return _mm256_mulhrs_epi16(v, by); }
  LOWBIT_INLINE I32 negative8(I32 v) { return _mm256_cmpgt_epi8(_mm256_setzero_si256(), v); }
  LOWBIT_INLINE I32 subtract_saturating8(I32 v, I32 w) { return _mm256_subs_epi8(v, w); }
  LOWBIT_INLINE I32 look_up8(I32 table, I32 v) { return _mm256_shuffle_epi8(table, v); }
  LOWBIT_INLINE I32 repeat128(__m128i v) { return _mm256_broadcastsi128_si256(v); }
  LOWBIT_INLINE void store_nibbles(uint8_t* p, I32 pairs) {
    const __m128i bytes = _mm_packus_epi16(lower(pairs), upper(pairs));
    store_half(p, _mm_shuffle_epi8(bytes, _mm_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15)));
  }

  LOWBIT_INLINE float reduce_min(F32 x) {
    __m128 v = _mm_min_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    v = _mm_min_ps(v, _mm_movehl_ps(v, v));
    return _mm_cvtss_f32(_mm_min_ss(v, _mm_movehdup_ps(v)));
  }
  LOWBIT_INLINE float reduce_max(F32 x) {
    __m128 v = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    v = _mm_max_ps(v, _mm_movehl_ps(v, v));
    return _mm_cvtss_f32(_mm_max_ss(v, _mm_movehdup_ps(v)));
  }
  LOWBIT_INLINE double reduce_min(Half x) {
    const __m128d v = _mm_min_pd(_mm256_castpd256_pd128(x), _mm256_extractf128_pd(x, 1));
    return _mm_cvtsd_f64(_mm_min_sd(v, _mm_unpackhi_pd(v, v)));
  }
  LOWBIT_INLINE double reduce_max(Half x) {
    const __m128d v = _mm_max_pd(_mm256_castpd256_pd128(x), _mm256_extractf128_pd(x, 1));
    return _mm_cvtsd_f64(_mm_max_sd(v, _mm_unpackhi_pd(v, v)));
  }
  LOWBIT_INLINE int32_t reduce_max_i32(I32 i) {
    __m128i v = _mm_max_epi32(lower(i), upper(i));
    v = _mm_max_epi32(v, _mm_shuffle_epi32(v, 0x4e));
    return _mm_cvtsi128_si32(_mm_max_epi32(v, _mm_shuffle_epi32(v, 0xb1)));
  }
  // Reduces eight vectors to one vector of their maxima, by merging two at a time.
  template <class Max>
  LOWBIT_INLINE I32 fold_rows(const I32* r, Max max) {
    const auto two = [&](I32 a, I32 b) __attribute__((always_inline)) {
      return max(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
    };
    const auto four = [&](I32 a, I32 b) __attribute__((always_inline)) {
      return max(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
    };
    const I32 a = four(two(r[0], r[1]), two(r[2], r[3])), b = four(two(r[4], r[5]), two(r[6], r[7]));
    return max(lower_lanes(a, b), upper_lanes(a, b));
  }
  LOWBIT_INLINE void reduce_rows_max_i32(const I32* rows, int count, int32_t* out) {
    for (int r = 0; r < count; r += 8)
      store_bytes(out + r, fold_rows(rows + r, [](I32 i, I32 j) { return max(i, j); }));
  }
  LOWBIT_INLINE void reduce_rows_max_u32(const I32* rows, int count, uint32_t* out) {
    for (int r = 0; r < count; r += 8)
      store_bytes(out + r, fold_rows(rows + r, [](I32 i, I32 j) { return max_u32(i, j); }));
  }
};

struct Avx2 : X86Vector<Ymm> {};

}  // namespace lowbit
