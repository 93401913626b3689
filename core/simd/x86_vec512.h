// AVX-512 F/BW/DQ/VL: sixteen lanes.
#pragma once
#include <immintrin.h>

#include "simd/vec.h"

namespace lowbit {

struct Avx512 {
  static constexpr int width = 16;
  static constexpr bool has_fma = true, limit_needs_lo = false;
  using F32 = __m512;
  struct F64 {
    __m512d lo, hi;
  };
  using I32 = __m512i;

  LOWBIT_INLINE F32 load(const float* p) { return _mm512_loadu_ps(p); }
  LOWBIT_INLINE F32 load(const half_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  LOWBIT_INLINE F32 load(const bfloat_t* p) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
  }
  // Interleaving with zeros below widens two vectors at once, scrambled as packs_epi32 unscrambles.
  struct F32x4 {
    F32 a, b, c, d;
  };
  LOWBIT_INLINE F32x4 load4(const bfloat_t* p) {
    const __m512i zero = _mm512_setzero_si512();
    const __m512i v = _mm512_loadu_si512(p), w = _mm512_loadu_si512(p + 32);
    return {_mm512_castsi512_ps(_mm512_unpacklo_epi16(zero, v)), _mm512_castsi512_ps(_mm512_unpackhi_epi16(zero, v)),
            _mm512_castsi512_ps(_mm512_unpacklo_epi16(zero, w)), _mm512_castsi512_ps(_mm512_unpackhi_epi16(zero, w))};
  }
  // Even and odd lanes: each is the half of a 32-bit lane.
  struct F32x2 {
    F32 a, b;
  };
  LOWBIT_INLINE F32x2 load_pair(const bfloat_t* p) {
    const __m512i v = _mm512_loadu_si512(p);
    return {_mm512_castsi512_ps(_mm512_slli_epi32(v, 16)),
            _mm512_castsi512_ps(_mm512_and_si512(v, _mm512_set1_epi32(~0xffff)))};
  }
  template <PairRounding Rounding>
  LOWBIT_INLINE __m512i rounded_up_half(F32 x) {  // right in the 16 upper bits of each lane, if x is no NaN
    const __m512i b = _mm512_castps_si512(x);
    if constexpr (Rounding == PairRounding::exact) return b;
    if constexpr (Rounding == PairRounding::no_ties) return _mm512_add_epi32(b, _mm512_set1_epi32(0x8000));
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(b, 16), _mm512_set1_epi32(1));
    return _mm512_add_epi32(_mm512_add_epi32(b, odd), _mm512_set1_epi32(0x7fff));
  }
  template <PairRounding Rounding>
  LOWBIT_INLINE void store_pair(bfloat_t* p, F32x2 x) {
    const __m512i even = _mm512_srli_epi32(rounded_up_half<Rounding>(x.a), 16), odd = rounded_up_half<Rounding>(x.b);
    _mm512_storeu_si512(p, _mm512_mask_blend_epi16(0xaaaaaaaau, even, odd));
  }
  LOWBIT_INLINE F64 load(const double* p) { return {_mm512_loadu_pd(p), _mm512_loadu_pd(p + 8)}; }
  LOWBIT_INLINE I32 load_i32(const int32_t* p) { return _mm512_loadu_si512(p); }
  LOWBIT_INLINE void store_i32(int32_t* p, I32 i) { _mm512_storeu_si512(p, i); }
  LOWBIT_INLINE F32 set(float x) { return _mm512_set1_ps(x); }
  LOWBIT_INLINE F64 set(double x) { return {_mm512_set1_pd(x), _mm512_set1_pd(x)}; }
  LOWBIT_INLINE I32 set_i32(int32_t i) { return _mm512_set1_epi32(i); }
  LOWBIT_INLINE I32 mul_i32(I32 i, I32 j) { return _mm512_mullo_epi32(i, j); }

  LOWBIT_INLINE void store(float* p, F32 x) { _mm512_storeu_ps(p, x); }
  LOWBIT_INLINE void store(half_t* p, F32 x) {
    const __m256i h = _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), h);
  }
  LOWBIT_INLINE void store(bfloat_t* p, F32 x) {
    const __m512i b = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(b, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(b, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __m512i nan = _mm512_or_si512(b, _mm512_set1_epi32(0x400000));
    const __mmask16 is_nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    const __m512i r = _mm512_srli_epi32(_mm512_mask_blend_epi32(is_nan, rounded, nan), 16);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(r));
  }
  // Without the care for NaN: rounding to even by addition leaves an infinity unchanged.
  LOWBIT_INLINE void store_number(bfloat_t* p, F32 x) {
    const __m512i b = _mm512_castps_si512(x);
    const __m512i odd = _mm512_srli_epi32(_mm512_slli_epi32(b, 15), 31);
    const __m512i r = _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(b, odd), _mm512_set1_epi32(0x7fff)), 16);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(r));
  }
  template <class Out, class F>
  LOWBIT_INLINE void store_number(Out* p, F x) {
    store(p, x);
  }
  LOWBIT_INLINE void store(double* p, F64 x) {
    _mm512_storeu_pd(p, x.lo);
    _mm512_storeu_pd(p + 8, x.hi);
  }

  // min returns its second operand if either is NaN. A NaN, or a number far below, converts to INT_MIN, so
  // the lower bound is left to the cheaper integer side.
  LOWBIT_INLINE F32 limit(F32 x, F32, F32 hi) { return _mm512_min_ps(hi, x); }
  LOWBIT_INLINE F64 limit(F64 x, F64, F64 hi) { return {_mm512_min_pd(hi.lo, x.lo), _mm512_min_pd(hi.hi, x.hi)}; }
  LOWBIT_INLINE F32 abs(F32 x) { return _mm512_abs_ps(x); }
  LOWBIT_INLINE F64 abs(F64 x) { return {_mm512_abs_pd(x.lo), _mm512_abs_pd(x.hi)}; }
  LOWBIT_INLINE F32 mul(F32 x, F32 y) { return _mm512_mul_ps(x, y); }
  LOWBIT_INLINE F64 mul(F64 x, F64 y) { return {_mm512_mul_pd(x.lo, y.lo), _mm512_mul_pd(x.hi, y.hi)}; }
  LOWBIT_INLINE F32 divide(F32 x, F32 s) { return _mm512_div_ps(x, s); }
  LOWBIT_INLINE F64 divide(F64 x, F64 s) { return {_mm512_div_pd(x.lo, s.lo), _mm512_div_pd(x.hi, s.hi)}; }
  LOWBIT_INLINE F32 fma(F32 x, F32 y, F32 z) { return _mm512_fmadd_ps(x, y, z); }
  LOWBIT_INLINE void keep(F32& x) { asm("" : "+v"(x)); }
  LOWBIT_INLINE F32 clamp(F32 x, F32 lo, F32 hi) { return _mm512_max_ps(lo, _mm512_min_ps(hi, x)); }
  LOWBIT_INLINE F64 clamp(F64 x, F64 lo, F64 hi) {
    return {_mm512_max_pd(lo.lo, _mm512_min_pd(hi.lo, x.lo)), _mm512_max_pd(lo.hi, _mm512_min_pd(hi.hi, x.hi))};
  }
  static constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  LOWBIT_INLINE F32 round(F32 x) { return _mm512_roundscale_ps(x, kNearest); }
  LOWBIT_INLINE F64 round(F64 x) {
    return {_mm512_roundscale_pd(x.lo, kNearest), _mm512_roundscale_pd(x.hi, kNearest)};
  }
  LOWBIT_INLINE F32 add(F32 x, F32 y) { return _mm512_add_ps(x, y); }
  LOWBIT_INLINE F64 add(F64 x, F64 y) { return {_mm512_add_pd(x.lo, y.lo), _mm512_add_pd(x.hi, y.hi)}; }
  LOWBIT_INLINE F32 sub(F32 x, F32 y) { return _mm512_sub_ps(x, y); }
  LOWBIT_INLINE F64 sub(F64 x, F64 y) { return {_mm512_sub_pd(x.lo, y.lo), _mm512_sub_pd(x.hi, y.hi)}; }
  LOWBIT_INLINE void stream(float* p, F32 x) { _mm512_stream_ps(p, x); }
  LOWBIT_INLINE void stream(double* p, F64 x) { _mm512_stream_pd(p, x.lo), _mm512_stream_pd(p + 8, x.hi); }
  LOWBIT_INLINE F32 only_in(F32 r, F32 lo, F32 hi, F32 v) {
    const __mmask16 above = _mm512_cmp_ps_mask(r, lo, _CMP_GE_OQ);
    return _mm512_maskz_mov_ps(_mm512_mask_cmp_ps_mask(above, r, hi, _CMP_LE_OQ), v);
  }
  LOWBIT_INLINE F32 only_below(F32 r, F32 lo, F32 v) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(r, lo, _CMP_LT_OQ), v);
  }
  LOWBIT_INLINE F32 only_above(F32 r, F32 hi, F32 v) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(r, hi, _CMP_GT_OQ), v);
  }
  LOWBIT_INLINE __m512d only_in(__m512d r, __m512d lo, __m512d hi, __m512d v) {
    const __mmask8 above = _mm512_cmp_pd_mask(r, lo, _CMP_GE_OQ);
    return _mm512_maskz_mov_pd(_mm512_mask_cmp_pd_mask(above, r, hi, _CMP_LE_OQ), v);
  }
  LOWBIT_INLINE F64 only_in(F64 r, F64 lo, F64 hi, F64 v) {
    return {only_in(r.lo, lo.lo, hi.lo, v.lo), only_in(r.hi, lo.hi, hi.hi, v.hi)};
  }
  LOWBIT_INLINE F64 only_below(F64 r, F64 lo, F64 v) {
    return {_mm512_maskz_mov_pd(_mm512_cmp_pd_mask(r.lo, lo.lo, _CMP_LT_OQ), v.lo),
            _mm512_maskz_mov_pd(_mm512_cmp_pd_mask(r.hi, lo.hi, _CMP_LT_OQ), v.hi)};
  }
  LOWBIT_INLINE F64 only_above(F64 r, F64 hi, F64 v) {
    return {_mm512_maskz_mov_pd(_mm512_cmp_pd_mask(r.lo, hi.lo, _CMP_GT_OQ), v.lo),
            _mm512_maskz_mov_pd(_mm512_cmp_pd_mask(r.hi, hi.hi, _CMP_GT_OQ), v.hi)};
  }
  LOWBIT_INLINE uint32_t equal_bits(F32 x, F32 y) { return _mm512_cmp_ps_mask(x, y, _CMP_EQ_OQ); }
  LOWBIT_INLINE uint32_t equal_bits(F32x2 x, F32x2 y) {  // in the order of memory
    const __m512i even = _mm512_movm_epi32(_mm512_cmp_ps_mask(x.a, y.a, _CMP_EQ_OQ));
    const __m512i odd = _mm512_movm_epi32(_mm512_cmp_ps_mask(x.b, y.b, _CMP_EQ_OQ));
    return _mm512_movepi16_mask(_mm512_mask_blend_epi16(0xaaaaaaaau, even, odd));
  }
  LOWBIT_INLINE uint32_t equal_bits(F64 x, F64 y) {
    const uint32_t hi = _mm512_cmp_pd_mask(x.hi, y.hi, _CMP_EQ_OQ);
    return _mm512_cmp_pd_mask(x.lo, y.lo, _CMP_EQ_OQ) | hi << 8;
  }
  LOWBIT_INLINE I32 round_i32(F32 y) {
    return _mm512_cvt_roundps_epi32(y, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  LOWBIT_INLINE I32 join(__m256i lo, __m256i hi) { return _mm512_inserti64x4(_mm512_castsi256_si512(lo), hi, 1); }
  LOWBIT_INLINE I32 round_i32(F64 y) { return join(_mm512_cvtpd_epi32(y.lo), _mm512_cvtpd_epi32(y.hi)); }
  LOWBIT_INLINE F32 to_f32(I32 i) { return _mm512_cvtepi32_ps(i); }
  LOWBIT_INLINE F64 to_f64(I32 i) {
    return {_mm512_cvtepi32_pd(_mm512_castsi512_si256(i)), _mm512_cvtepi32_pd(_mm512_extracti64x4_epi64(i, 1))};
  }
  LOWBIT_INLINE F64 to_f64(F32 x) {
    return {_mm512_cvtps_pd(_mm512_castps512_ps256(x)), _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1))};
  }
  LOWBIT_INLINE I32 add(I32 i, I32 j) { return _mm512_add_epi32(i, j); }
  LOWBIT_INLINE I32 bit_and(I32 i, I32 j) { return _mm512_and_si512(i, j); }
  LOWBIT_INLINE F32 look_up16(F32 table, I32 i) { return _mm512_permutexvar_ps(i, table); }
  LOWBIT_INLINE I32 sub(I32 i, I32 j) { return _mm512_sub_epi32(i, j); }
  LOWBIT_INLINE I32 where_negative(I32 i, I32 v) { return _mm512_maskz_mov_epi32(_mm512_movepi32_mask(i), v); }
  LOWBIT_INLINE I32 shift_right(I32 i, int n) { return (__m512i)((__v16su)i >> n); }
  LOWBIT_INLINE I32 max(I32 i, I32 j) { return _mm512_max_epi32(i, j); }
  LOWBIT_INLINE I32 min(I32 i, I32 j) { return _mm512_min_epi32(i, j); }

  LOWBIT_INLINE I32 load_codes(const int8_t* p) {
    return _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  LOWBIT_INLINE I32 load_codes(const uint8_t* p) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  LOWBIT_INLINE I32 load_codes(const int16_t* p) {
    return _mm512_cvtepi16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  LOWBIT_INLINE I32 load_codes(const uint16_t* p) {
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  LOWBIT_INLINE void store8(void* p, I32 i) { _mm_storeu_si128(static_cast<__m128i*>(p), _mm512_cvtepi32_epi8(i)); }
  LOWBIT_INLINE void store16(void* p, I32 i) {
    _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_cvtepi32_epi16(i));
  }
  LOWBIT_INLINE void store_codes(int8_t* p, I32 i) { store8(p, i); }
  LOWBIT_INLINE void store_codes(uint8_t* p, I32 i) { store8(p, i); }
  LOWBIT_INLINE void store_codes(int16_t* p, I32 i) { store16(p, i); }
  LOWBIT_INLINE void store_codes(uint16_t* p, I32 i) { store16(p, i); }

  // Packing works within 128-bit lanes; one permutation at the end restores the order.
  LOWBIT_INLINE __m512i unscramble8(__m512i v) {
    return _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), v);
  }
  LOWBIT_INLINE __m512i unscramble16(__m512i v) {
    return _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), v);
  }
  // To 8 and 16 bits, saturating.
  LOWBIT_INLINE __m512i pack8(int8_t, __m512i lo, __m512i hi) { return _mm512_packs_epi16(lo, hi); }
  LOWBIT_INLINE __m512i pack8(uint8_t, __m512i lo, __m512i hi) { return _mm512_packus_epi16(lo, hi); }
  LOWBIT_INLINE __m512i pack16(int16_t, I32 lo, I32 hi) { return _mm512_packs_epi32(lo, hi); }
  LOWBIT_INLINE __m512i pack16(uint16_t, I32 lo, I32 hi) { return _mm512_packus_epi32(lo, hi); }
  LOWBIT_INLINE __m512i max8(int8_t, __m512i x, __m512i y) { return _mm512_max_epi8(x, y); }
  LOWBIT_INLINE __m512i max8(uint8_t, __m512i x, __m512i y) { return _mm512_max_epu8(x, y); }
  LOWBIT_INLINE __m512i min8(int8_t, __m512i x, __m512i y) { return _mm512_min_epi8(x, y); }
  LOWBIT_INLINE __m512i min8(uint8_t, __m512i x, __m512i y) { return _mm512_min_epu8(x, y); }
  template <class Code>
  LOWBIT_INLINE void store_codes4(Code* p, I32 a, I32 b, I32 c, I32 d) {
    if constexpr (sizeof(Code) == 1) {
      _mm512_storeu_si512(p, unscramble8(pack8(Code{}, _mm512_packs_epi32(a, b), _mm512_packs_epi32(c, d))));
    } else {
      _mm512_storeu_si512(p, unscramble16(pack16(Code{}, a, b)));
      _mm512_storeu_si512(p + 32, unscramble16(pack16(Code{}, c, d)));
    }
  }
  struct ByteShift {
    __m512i zero, qmin;
    ByteShift(int32_t z, int32_t lo)
        : zero(_mm512_set1_epi16(static_cast<int16_t>(z))), qmin(_mm512_set1_epi8(static_cast<char>(lo))) {}
  };
  LOWBIT_INLINE __m512i shifted(I32 i, I32 j, const ByteShift& k) {
    return _mm512_adds_epi16(_mm512_packs_epi32(i, j), k.zero);
  }
  template <bool Paired>
  LOWBIT_INLINE __m512i ordered(__m512i q) {
    if constexpr (Paired) return unscramble16(q);
    return unscramble8(q);
  }
  template <bool Paired = false, class Code>
  LOWBIT_INLINE void store_bytes4(Code* p, I32 a, I32 b, I32 c, I32 d, const ByteShift& k) {
    const __m512i q = pack8(Code{}, shifted(a, b, k), shifted(c, d, k));
    _mm512_storeu_si512(p, ordered<Paired>(max8(Code{}, q, k.qmin)));
  }

  struct Bounds {
    __m512i zero, qmin, qmax;
    Bounds(int32_t z, int32_t lo, int32_t hi)
        : zero(_mm512_set1_epi16(static_cast<int16_t>(z))),
          qmin(_mm512_set1_epi8(static_cast<char>(lo))),
          qmax(_mm512_set1_epi8(static_cast<char>(hi))) {}
  };
  template <bool Clamp, class Code>
  LOWBIT_INLINE __m512i bounded(Code, I32 a, I32 b, I32 c, I32 d, const Bounds& k) {
    const __m512i l = _mm512_packs_epi32(a, b), h = _mm512_packs_epi32(c, d);
    if constexpr (!Clamp) return pack8(Code{}, l, h);
    const __m512i q = pack8(Code{}, _mm512_add_epi16(l, k.zero), _mm512_add_epi16(h, k.zero));
    return max8(Code{}, min8(Code{}, q, k.qmax), k.qmin);
  }
  template <bool Clamp, class Code>
  LOWBIT_INLINE void store_bounded4(Code* p, I32 a, I32 b, I32 c, I32 d, const Bounds& k) {
    _mm512_storeu_si512(p, unscramble8(bounded<Clamp>(Code{}, a, b, c, d, k)));
  }
  template <bool Clamp, class Code>
  LOWBIT_INLINE void store_nibbles4(Code, uint8_t* p, I32 a, I32 b, I32 c, I32 d, const Bounds& k) {
    const __m512i q = _mm512_and_si512(bounded<Clamp>(Code{}, a, b, c, d, k), _mm512_set1_epi8(0x0f));
    const __m256i bytes = _mm512_cvtepi16_epi8(_mm512_maddubs_epi16(q, _mm512_set1_epi16(0x1001)));
    const __m256i order = _mm256_setr_epi16(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m256i r = _mm256_permutexvar_epi16(order, bytes);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), r);
  }

  LOWBIT_INLINE F32 min_skip_nan(F32 x, F32 acc) { return _mm512_min_ps(x, acc); }
  LOWBIT_INLINE F32 max_skip_nan(F32 x, F32 acc) { return _mm512_max_ps(x, acc); }
  LOWBIT_INLINE F64 min_skip_nan(F64 x, F64 acc) { return {_mm512_min_pd(x.lo, acc.lo), _mm512_min_pd(x.hi, acc.hi)}; }
  LOWBIT_INLINE F64 max_skip_nan(F64 x, F64 acc) { return {_mm512_max_pd(x.lo, acc.lo), _mm512_max_pd(x.hi, acc.hi)}; }
  using Flag = __mmask16;
  LOWBIT_INLINE Flag no_nan() { return 0; }
  LOWBIT_INLINE Flag note_nan(Flag f, F32 x, F32 y) {
    return static_cast<Flag>(f | _mm512_cmp_ps_mask(x, y, _CMP_UNORD_Q));
  }
  LOWBIT_INLINE Flag note_nan(Flag f, F64 x, F64 y) {
    return static_cast<Flag>(f | _mm512_cmp_pd_mask(x.lo, y.lo, _CMP_UNORD_Q) |
                             _mm512_cmp_pd_mask(x.hi, y.hi, _CMP_UNORD_Q));
  }
  LOWBIT_INLINE bool any(Flag f) { return f != 0; }
  LOWBIT_INLINE I32 positive(F32 x) {
    return _mm512_maskz_set1_epi32(_mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_GT_OQ), 1);
  }
  LOWBIT_INLINE I32 positive(F64 x) {
    const unsigned lo = _mm512_cmp_pd_mask(x.lo, _mm512_setzero_pd(), _CMP_GT_OQ);
    const unsigned hi = _mm512_cmp_pd_mask(x.hi, _mm512_setzero_pd(), _CMP_GT_OQ);
    return _mm512_maskz_set1_epi32(static_cast<__mmask16>(lo | (hi << 8)), 1);
  }
  LOWBIT_INLINE float reduce_min(F32 x) { return _mm512_reduce_min_ps(x); }
  LOWBIT_INLINE float reduce_max(F32 x) { return _mm512_reduce_max_ps(x); }
  LOWBIT_INLINE double reduce_min(F64 x) { return _mm512_reduce_min_pd(_mm512_min_pd(x.lo, x.hi)); }
  LOWBIT_INLINE double reduce_max(F64 x) { return _mm512_reduce_max_pd(_mm512_max_pd(x.lo, x.hi)); }

  LOWBIT_INLINE F32 kept(F32 x) {
    asm("" : "+v"(x));
    return x;
  }
  LOWBIT_INLINE I32 bits(F32 x) { return _mm512_castps_si512(x); }
  LOWBIT_INLINE I32 max_u32(I32 i, I32 j) { return _mm512_max_epu32(i, j); }
  LOWBIT_INLINE void reduce_rows_max_i32(const I32* rows, int count, int32_t* out) {
    for (int r = 0; r < count; ++r) out[r] = _mm512_reduce_max_epi32(rows[r]);
  }
  LOWBIT_INLINE void reduce_rows_max_u32(const I32* rows, int count, uint32_t* out) {
    for (int r = 0; r < count; ++r) out[r] = _mm512_reduce_max_epu32(rows[r]);
  }
  LOWBIT_INLINE I32 magnitude(F32 x) { return _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fffffff)); }
  LOWBIT_INLINE int32_t reduce_max_i32(I32 i) { return _mm512_reduce_max_epi32(i); }

  struct Sum8 {
    __m512d all = _mm512_setzero_pd();
  };
  LOWBIT_INLINE __m512d load8(const float* p) { return _mm512_cvtps_pd(_mm256_loadu_ps(p)); }
  LOWBIT_INLINE __m512d load8(const half_t* p) {
    return _mm512_cvtps_pd(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  }
  LOWBIT_INLINE __m512d load8(const bfloat_t* p) {
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return _mm512_cvtps_pd(_mm256_castsi256_ps(_mm256_slli_epi32(wide, 16)));
  }
  LOWBIT_INLINE __m512d load8(const double* p) { return _mm512_loadu_pd(p); }
  template <class In>
  LOWBIT_INLINE void sum_abs(Sum8& acc, const In* p) {
    acc.all = _mm512_add_pd(acc.all, _mm512_abs_pd(load8(p)));
  }
  template <class T>
  LOWBIT_INLINE void sum_products(Sum8& acc, const T* p, const T* q) {
    acc.all = _mm512_add_pd(acc.all, _mm512_mul_pd(load8(p), load8(q)));
  }
  LOWBIT_INLINE void add_products(Sum8& acc, F64 x, F64 y) {
    acc.all = _mm512_add_pd(_mm512_add_pd(acc.all, _mm512_mul_pd(x.lo, y.lo)), _mm512_mul_pd(x.hi, y.hi));
  }
  LOWBIT_INLINE void add_products(Sum8& acc, F32 x, F32 y) { add_products(acc, to_f64(x), to_f64(y)); }
  LOWBIT_INLINE bool all_in(F32 r, F32 lo, F32 hi) {
    return _mm512_mask_cmp_ps_mask(_mm512_cmp_ps_mask(r, lo, _CMP_GE_OQ), r, hi, _CMP_LE_OQ) == 0xffff;
  }
  LOWBIT_INLINE bool all_in(F64 r, F64 lo, F64 hi) {
    const __mmask8 a = _mm512_mask_cmp_pd_mask(_mm512_cmp_pd_mask(r.lo, lo.lo, _CMP_GE_OQ), r.lo, hi.lo, _CMP_LE_OQ);
    const __mmask8 b = _mm512_mask_cmp_pd_mask(_mm512_cmp_pd_mask(r.hi, lo.hi, _CMP_GE_OQ), r.hi, hi.hi, _CMP_LE_OQ);
    return (a & b) == 0xff;
  }
  LOWBIT_INLINE void add_powers(Sum8 (&acc)[3], const float* p) {
    const __m512d x = load8(p);
    acc[0].all = _mm512_add_pd(acc[0].all, x);
    acc[1].all = _mm512_fmadd_pd(x, x, acc[1].all);  // exact squares: see x86_vec256.h
    acc[2].all = _mm512_add_pd(acc[2].all, _mm512_abs_pd(x));
  }
  LOWBIT_INLINE void lanes(const Sum8& acc, double* out) { _mm512_storeu_pd(out, acc.all); }

  static constexpr int kPairBlock = 128;
  template <int Shift>
  LOWBIT_INLINE void merge_pairs(const uint8_t* src, uint8_t* dst) {
    const __m512i weights = _mm512_set1_epi16(static_cast<int16_t>(0x0001 | (1 << (8 + Shift))));
    const __m512i mask = _mm512_set1_epi8((1 << Shift) - 1);
    const __m512i a = _mm512_and_si512(mask, _mm512_loadu_si512(src));
    const __m512i b = _mm512_and_si512(mask, _mm512_loadu_si512(src + 64));
    const __m512i r = _mm512_packus_epi16(_mm512_maddubs_epi16(a, weights), _mm512_maddubs_epi16(b, weights));
    _mm512_storeu_si512(dst, unscramble16(r));
  }
  template <int Shift>
  LOWBIT_INLINE void split_pairs(const uint8_t* src, uint8_t* dst) {
    const __m512i mask = _mm512_set1_epi8((1 << Shift) - 1);
    const __m512i spread = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
    const __m512i v = _mm512_permutexvar_epi64(spread, _mm512_loadu_si512(src));
    const __m512i even = _mm512_and_si512(v, mask);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi16(v, Shift), mask);
    _mm512_storeu_si512(dst, _mm512_unpacklo_epi8(even, odd));
    _mm512_storeu_si512(dst + 64, _mm512_unpackhi_epi8(even, odd));
  }
};

}  // namespace lowbit
