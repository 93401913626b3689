// AVX-512 F/BW/DQ/VL: sixteen lanes.
#pragma once
#include "simd/x86_vec.h"

namespace lowbit {

struct Zmm {
  static constexpr int width = 16;
  using F32 = __m512;
  using Half = __m512d;
  using I32 = __m512i;
  using U32 = __v16su;
  using U16 = __v32hu;
  using S16 = __v32hi;

  LOWBIT_INLINE F32 load(const float* p) { return _mm512_loadu_ps(p); }
  LOWBIT_INLINE F32 load(const half_t* p) { return _mm512_cvtph_ps(load_half(p)); }
  LOWBIT_INLINE Half load(const double* p) { return _mm512_loadu_pd(p); }
  LOWBIT_INLINE __m128i load128(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
  LOWBIT_INLINE __m256i load_half(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
  LOWBIT_INLINE I32 load_bytes(const void* p) { return _mm512_loadu_si512(p); }
  LOWBIT_INLINE I32 load_i32(const int32_t* p) { return _mm512_loadu_si512(p); }
  LOWBIT_INLINE void store(float* p, F32 x) { _mm512_storeu_ps(p, x); }
  LOWBIT_INLINE void store(half_t* p, F32 x) { store_half(p, _mm512_cvtps_ph(x, kToNearest)); }
  LOWBIT_INLINE void store(double* p, Half x) { _mm512_storeu_pd(p, x); }
  LOWBIT_INLINE void store_half(void* p, __m256i v) { _mm256_storeu_si256(static_cast<__m256i*>(p), v); }
  LOWBIT_INLINE void store_bytes(void* p, __m512i v) { _mm512_storeu_si512(p, v); }
  LOWBIT_INLINE void store_i32(int32_t* p, I32 i) { _mm512_storeu_si512(p, i); }
  LOWBIT_INLINE void stream(float* p, F32 x) { _mm512_stream_ps(p, x); }
  LOWBIT_INLINE void stream(double* p, Half x) { _mm512_stream_pd(p, x); }
  LOWBIT_INLINE F32 set(float x) { return _mm512_set1_ps(x); }
  LOWBIT_INLINE Half set(double x) { return _mm512_set1_pd(x); }
  LOWBIT_INLINE I32 set_i32(int32_t i) { return _mm512_set1_epi32(i); }
  LOWBIT_INLINE I32 set16(int i) { return _mm512_set1_epi16(static_cast<int16_t>(i)); }
  LOWBIT_INLINE I32 set8(int i) { return _mm512_set1_epi8(static_cast<char>(i)); }

  LOWBIT_INLINE F32 abs(F32 x) { return _mm512_abs_ps(x); }
  LOWBIT_INLINE Half abs(Half x) { return _mm512_abs_pd(x); }
  LOWBIT_INLINE F32 min(F32 x, F32 y) { return _mm512_min_ps(x, y); }
  LOWBIT_INLINE Half min(Half x, Half y) { return _mm512_min_pd(x, y); }
  LOWBIT_INLINE F32 max(F32 x, F32 y) { return _mm512_max_ps(x, y); }
  LOWBIT_INLINE Half max(Half x, Half y) { return _mm512_max_pd(x, y); }
  LOWBIT_INLINE F32 fma(F32 x, F32 y, F32 z) { return _mm512_fmadd_ps(x, y, z); }
  LOWBIT_INLINE Half fma(Half x, Half y, Half z) { return _mm512_fmadd_pd(x, y, z); }
  LOWBIT_INLINE F32 round(F32 x) { return _mm512_roundscale_ps(x, kToNearest); }
  LOWBIT_INLINE Half round(Half x) { return _mm512_roundscale_pd(x, kToNearest); }

  LOWBIT_INLINE __mmask16 less(F32 x, F32 y) { return _mm512_cmp_ps_mask(x, y, _CMP_LT_OQ); }
  LOWBIT_INLINE __mmask8 less(Half x, Half y) { return _mm512_cmp_pd_mask(x, y, _CMP_LT_OQ); }
  LOWBIT_INLINE __mmask16 equal(F32 x, F32 y) { return _mm512_cmp_ps_mask(x, y, _CMP_EQ_OQ); }
  LOWBIT_INLINE __mmask8 equal(Half x, Half y) { return _mm512_cmp_pd_mask(x, y, _CMP_EQ_OQ); }
  LOWBIT_INLINE __mmask16 inside(F32 x, F32 lo, F32 hi) {
    return _mm512_mask_cmp_ps_mask(_mm512_cmp_ps_mask(x, lo, _CMP_GE_OQ), x, hi, _CMP_LE_OQ);
  }
  LOWBIT_INLINE __mmask8 inside(Half x, Half lo, Half hi) {
    return _mm512_mask_cmp_pd_mask(_mm512_cmp_pd_mask(x, lo, _CMP_GE_OQ), x, hi, _CMP_LE_OQ);
  }
  LOWBIT_INLINE F32 where(__mmask16 mask, F32 v) { return _mm512_maskz_mov_ps(mask, v); }
  LOWBIT_INLINE Half where(__mmask8 mask, Half v) { return _mm512_maskz_mov_pd(mask, v); }
  LOWBIT_INLINE F32 where_nan(F32 x, F32 v, F32 other) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), other, v);
  }
  LOWBIT_INLINE uint32_t mask_bits(uint32_t mask) { return mask; }
  LOWBIT_INLINE bool all(__mmask16 mask) { return mask == 0xffff; }
  LOWBIT_INLINE bool all(__mmask8 lo, __mmask8 hi) { return (lo & hi) == 0xff; }
  LOWBIT_INLINE uint32_t equal_bits(F32 even, F32 odd, F32 other_even, F32 other_odd) {  // in the order of memory
    return _mm512_movepi16_mask(
        odd16(_mm512_movm_epi32(equal(even, other_even)), _mm512_movm_epi32(equal(odd, other_odd))));
  }
  using Flag = __mmask16;
  LOWBIT_INLINE Flag no_nan() { return 0; }
  LOWBIT_INLINE Flag note_nan(Flag f, F32 x, F32 y) {
    return static_cast<Flag>(f | _mm512_cmp_ps_mask(x, y, _CMP_UNORD_Q));
  }
  LOWBIT_INLINE Flag note_nan(Flag f, Half x, Half y, Half u, Half v) {
    return static_cast<Flag>(f | _mm512_cmp_pd_mask(x, y, _CMP_UNORD_Q) | _mm512_cmp_pd_mask(u, v, _CMP_UNORD_Q));
  }
  LOWBIT_INLINE bool any(Flag f) { return f != 0; }
  LOWBIT_INLINE I32 positive(F32 x) { return _mm512_maskz_set1_epi32(less(_mm512_setzero_ps(), x), 1); }
  LOWBIT_INLINE I32 positive(Half x, Half y) {
    const unsigned lo = less(_mm512_setzero_pd(), x), hi = less(_mm512_setzero_pd(), y);
    return _mm512_maskz_set1_epi32(static_cast<__mmask16>(lo | (hi << 8)), 1);
  }

  LOWBIT_INLINE I32 round_i32(F32 x) { return _mm512_cvt_roundps_epi32(x, kToNearest); }
  LOWBIT_INLINE __m256i lower(I32 i) { return _mm512_castsi512_si256(i); }
  LOWBIT_INLINE __m256i upper(I32 i) { return _mm512_extracti64x4_epi64(i, 1); }
  LOWBIT_INLINE I32 round_i32(Half x, Half y) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtpd_epi32(x)), _mm512_cvtpd_epi32(y), 1);
  }
  LOWBIT_INLINE F32 to_f32(I32 i) { return _mm512_cvtepi32_ps(i); }
  LOWBIT_INLINE Half lower_half(I32 i) { return _mm512_cvtepi32_pd(lower(i)); }
  LOWBIT_INLINE Half upper_half(I32 i) { return _mm512_cvtepi32_pd(upper(i)); }
  LOWBIT_INLINE Half lower_half(F32 x) { return _mm512_cvtps_pd(_mm512_castps512_ps256(x)); }
  LOWBIT_INLINE Half upper_half(F32 x) { return _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1)); }
  LOWBIT_INLINE Half load8(const float* p) { return _mm512_cvtps_pd(_mm256_loadu_ps(p)); }
  LOWBIT_INLINE Half load8(const half_t* p) { return _mm512_cvtps_pd(_mm256_cvtph_ps(load128(p))); }
  LOWBIT_INLINE Half load8(const bfloat_t* p) {
    return _mm512_cvtps_pd(_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load128(p)), 16)));
  }
  LOWBIT_INLINE Half load8(const double* p) { return load(p); }

  LOWBIT_INLINE F32 look_up16(F32 table, I32 i) { return _mm512_permutexvar_ps(i, table); }
  LOWBIT_INLINE I32 where_negative(I32 i, I32 v) { return _mm512_maskz_mov_epi32(_mm512_movepi32_mask(i), v); }
  LOWBIT_INLINE I32 max(I32 i, I32 j) { return _mm512_max_epi32(i, j); }
  LOWBIT_INLINE I32 min(I32 i, I32 j) { return _mm512_min_epi32(i, j); }
  LOWBIT_INLINE I32 max_u32(I32 i, I32 j) { return _mm512_max_epu32(i, j); }

  LOWBIT_INLINE I32 load_codes(const int8_t* p) { return _mm512_cvtepi8_epi32(load128(p)); }
  LOWBIT_INLINE I32 load_codes(const uint8_t* p) { return _mm512_cvtepu8_epi32(load128(p)); }
  LOWBIT_INLINE I32 load_codes(const int16_t* p) { return _mm512_cvtepi16_epi32(load_half(p)); }
  LOWBIT_INLINE I32 load_codes(const uint16_t* p) { return _mm512_cvtepu16_epi32(load_half(p)); }
  LOWBIT_INLINE I32 load_words(const int8_t* p) { return _mm512_cvtepi8_epi16(load_half(p)); }
  LOWBIT_INLINE I32 load_words(const uint8_t* p) { return _mm512_cvtepu8_epi16(load_half(p)); }
  template <class Code>
  LOWBIT_INLINE void store_codes(Code* p, I32 i) {
    if constexpr (sizeof(Code) == 1) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(i));
    } else {
      store_half(p, _mm512_cvtepi32_epi16(i));
    }
  }

  // Lanes of 8 and 16 bits. Packing saturates.
  LOWBIT_INLINE I32 pack8(int8_t, I32 lo, I32 hi) { return _mm512_packs_epi16(lo, hi); }
  LOWBIT_INLINE I32 pack8(uint8_t, I32 lo, I32 hi) { return _mm512_packus_epi16(lo, hi); }
  LOWBIT_INLINE I32 pack16(int16_t, I32 lo, I32 hi) { return _mm512_packs_epi32(lo, hi); }
  LOWBIT_INLINE I32 pack16(uint16_t, I32 lo, I32 hi) { return _mm512_packus_epi32(lo, hi); }
  LOWBIT_INLINE I32 unscramble8(I32 v) {
    return _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), v);
  }
  LOWBIT_INLINE I32 unscramble16(I32 v) {
    return _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), v);
  }
  LOWBIT_INLINE I32 scramble16(I32 v) { return _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7), v); }
  LOWBIT_INLINE I32 lower8(I32 v, I32 w) { return _mm512_unpacklo_epi8(v, w); }
  LOWBIT_INLINE I32 upper8(I32 v, I32 w) { return _mm512_unpackhi_epi8(v, w); }
  LOWBIT_INLINE I32 lower16(I32 v, I32 w) { return _mm512_unpacklo_epi16(v, w); }
  LOWBIT_INLINE I32 upper16(I32 v, I32 w) { return _mm512_unpackhi_epi16(v, w); }
  LOWBIT_INLINE I32 lower_lanes(I32 v, I32 w) {  // lanes of 128 bits, in turns
    return _mm512_permutex2var_epi64(v, _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11), w);
  }
  LOWBIT_INLINE I32 upper_lanes(I32 v, I32 w) {
    return _mm512_permutex2var_epi64(v, _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15), w);
  }
  LOWBIT_INLINE I32 odd16(I32 even, I32 odd) { return _mm512_mask_blend_epi16(0xaaaaaaaau, even, odd); }
  LOWBIT_INLINE I32 max8(int8_t, I32 v, I32 w) { return _mm512_max_epi8(v, w); }
  LOWBIT_INLINE I32 max8(uint8_t, I32 v, I32 w) { return _mm512_max_epu8(v, w); }
  LOWBIT_INLINE I32 min8(int8_t, I32 v, I32 w) { return _mm512_min_epi8(v, w); }
  LOWBIT_INLINE I32 min8(uint8_t, I32 v, I32 w) { return _mm512_min_epu8(v, w); }
  LOWBIT_INLINE I32 add_saturating16(I32 v, I32 w) { return _mm512_adds_epi16(v, w); }
  LOWBIT_INLINE I32 add_products8(I32 u8, I32 s8) { return _mm512_maddubs_epi16(u8, s8); }
  LOWBIT_INLINE I32 add_products16(I32 v, I32 w) { return _mm512_madd_epi16(v, w); }
  LOWBIT_INLINE I32 high_product16(I32 v, I32 w) { return _mm512_mulhi_epi16(v, w); }
  LOWBIT_INLINE I32 scale16(I32 v, I32 by) { return _mm512_mulhrs_epi16(v, by); }
  LOWBIT_INLINE I32 negative8(I32 v) { return _mm512_movm_epi8(_mm512_movepi8_mask(v)); }
  LOWBIT_INLINE I32 subtract_saturating8(I32 v, I32 w) { return _mm512_subs_epi8(v, w); }
  LOWBIT_INLINE I32 look_up8(I32 table, I32 v) { return _mm512_shuffle_epi8(table, v); }
  LOWBIT_INLINE I32 repeat128(__m128i v) { return _mm512_broadcast_i32x4(v); }
  LOWBIT_INLINE void store_nibbles(uint8_t* p, I32 pairs) {
    const __m256i order = _mm256_setr_epi16(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    store_half(p, _mm256_permutexvar_epi16(order, _mm512_cvtepi16_epi8(pairs)));
  }

  LOWBIT_INLINE float reduce_min(F32 x) { return _mm512_reduce_min_ps(x); }
  LOWBIT_INLINE float reduce_max(F32 x) { return _mm512_reduce_max_ps(x); }
  LOWBIT_INLINE double reduce_min(Half x) { return _mm512_reduce_min_pd(x); }
  LOWBIT_INLINE double reduce_max(Half x) { return _mm512_reduce_max_pd(x); }
  LOWBIT_INLINE int32_t reduce_max_i32(I32 i) { return _mm512_reduce_max_epi32(i); }
  LOWBIT_INLINE void reduce_rows_max_i32(const I32* rows, int count, int32_t* out) {
    for (int r = 0; r < count; ++r) out[r] = reduce_max_i32(rows[r]);
  }
  LOWBIT_INLINE void reduce_rows_max_u32(const I32* rows, int count, uint32_t* out) {
    for (int r = 0; r < count; ++r) out[r] = _mm512_reduce_max_epu32(rows[r]);
  }
};

struct Avx512 : X86Vector<Zmm> {};

}  // namespace lowbit
