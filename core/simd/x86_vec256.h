// AVX2 + FMA + F16C: eight lanes.
#pragma once
#include <immintrin.h>

#include "simd/vec.h"

namespace lowbit {

struct Avx2 {
  static constexpr int width = 8;
  static constexpr bool has_fma = true, limit_needs_lo = false;
  using F32 = __m256;
  struct F64 {
    __m256d lo, hi;
  };
  using I32 = __m256i;

  LOWBIT_INLINE F32 load(const float* p) { return _mm256_loadu_ps(p); }
  LOWBIT_INLINE F32 load(const half_t* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  LOWBIT_INLINE F32 load(const bfloat_t* p) {
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
  }
  // Interleaving with zeros below widens two vectors at once, scrambled as packs_epi32 unscrambles.
  struct F32x4 {
    F32 a, b, c, d;
  };
  LOWBIT_INLINE F32x4 load4(const bfloat_t* p) {
    const __m256i zero = _mm256_setzero_si256();
    const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
                  w = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 16));
    return {_mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, v)), _mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, v)),
            _mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, w)), _mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, w))};
  }
  // Even and odd lanes: each is the half of a 32-bit lane.
  struct F32x2 {
    F32 a, b;
  };
  LOWBIT_INLINE F32x2 load_pair(const bfloat_t* p) {
    const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(v, 16)),
            _mm256_castsi256_ps(_mm256_and_si256(v, _mm256_set1_epi32(~0xffff)))};
  }
  template <PairRounding Rounding>
  LOWBIT_INLINE __m256i rounded_up_half(F32 x) {  // right in the 16 upper bits of each lane, if x is no NaN
    const __m256i b = _mm256_castps_si256(x);
    if constexpr (Rounding == PairRounding::exact) return b;
    if constexpr (Rounding == PairRounding::no_ties) return _mm256_add_epi32(b, _mm256_set1_epi32(0x8000));
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(b, 16), _mm256_set1_epi32(1));
    return _mm256_add_epi32(_mm256_add_epi32(b, odd), _mm256_set1_epi32(0x7fff));
  }
  template <PairRounding Rounding>
  LOWBIT_INLINE void store_pair(bfloat_t* p, F32x2 x) {
    const __m256i even = _mm256_srli_epi32(rounded_up_half<Rounding>(x.a), 16), odd = rounded_up_half<Rounding>(x.b);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_blend_epi16(even, odd, 0xaa));
  }
  LOWBIT_INLINE F64 load(const double* p) { return {_mm256_loadu_pd(p), _mm256_loadu_pd(p + 4)}; }
  LOWBIT_INLINE I32 load_i32(const int32_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
  LOWBIT_INLINE void store_i32(int32_t* p, I32 i) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), i); }
  LOWBIT_INLINE F32 set(float x) { return _mm256_set1_ps(x); }
  LOWBIT_INLINE F64 set(double x) { return {_mm256_set1_pd(x), _mm256_set1_pd(x)}; }
  LOWBIT_INLINE I32 set_i32(int32_t i) { return _mm256_set1_epi32(i); }
  LOWBIT_INLINE I32 mul_i32(I32 i, I32 j) { return _mm256_mullo_epi32(i, j); }

  LOWBIT_INLINE void store(float* p, F32 x) { _mm256_storeu_ps(p, x); }
  LOWBIT_INLINE void store(half_t* p, F32 x) {
    const __m128i h = _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), h);
  }
  LOWBIT_INLINE void store(bfloat_t* p, F32 x) {
    const __m256i b = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(b, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(b, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i nan = _mm256_or_si256(b, _mm256_set1_epi32(0x400000));
    const __m256 is_nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
    const __m256i r = _mm256_srli_epi32(
        _mm256_castps_si256(_mm256_blendv_ps(_mm256_castsi256_ps(rounded), _mm256_castsi256_ps(nan), is_nan)), 16);
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(r, r), 0x08);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
  }
  // Without the care for NaN: rounding to even by addition leaves an infinity unchanged.
  LOWBIT_INLINE void store_number(bfloat_t* p, F32 x) {
    const __m256i b = _mm256_castps_si256(x);
    const __m256i odd = _mm256_srli_epi32(_mm256_slli_epi32(b, 15), 31);
    const __m256i r = _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(b, odd), _mm256_set1_epi32(0x7fff)), 16);
    const __m128i packed = _mm_packus_epi32(_mm256_castsi256_si128(r), _mm256_extracti128_si256(r, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), packed);
  }
  template <class Out, class F>
  LOWBIT_INLINE void store_number(Out* p, F x) {
    store(p, x);
  }
  LOWBIT_INLINE void store(double* p, F64 x) {
    _mm256_storeu_pd(p, x.lo);
    _mm256_storeu_pd(p + 4, x.hi);
  }

  // min returns its second operand if either is NaN. A NaN, or a number far below, converts to INT_MIN, so
  // the lower bound is left to the cheaper integer side.
  LOWBIT_INLINE F32 limit(F32 x, F32, F32 hi) { return _mm256_min_ps(hi, x); }
  LOWBIT_INLINE F64 limit(F64 x, F64, F64 hi) { return {_mm256_min_pd(hi.lo, x.lo), _mm256_min_pd(hi.hi, x.hi)}; }
  LOWBIT_INLINE F32 abs(F32 x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x); }
  LOWBIT_INLINE F64 abs(F64 x) {
    const __m256d sign = _mm256_set1_pd(-0.0);
    return {_mm256_andnot_pd(sign, x.lo), _mm256_andnot_pd(sign, x.hi)};
  }
  LOWBIT_INLINE F32 mul(F32 x, F32 y) { return _mm256_mul_ps(x, y); }
  LOWBIT_INLINE F64 mul(F64 x, F64 y) { return {_mm256_mul_pd(x.lo, y.lo), _mm256_mul_pd(x.hi, y.hi)}; }
  LOWBIT_INLINE F32 divide(F32 x, F32 s) { return _mm256_div_ps(x, s); }
  LOWBIT_INLINE F64 divide(F64 x, F64 s) { return {_mm256_div_pd(x.lo, s.lo), _mm256_div_pd(x.hi, s.hi)}; }
  LOWBIT_INLINE F32 fma(F32 x, F32 y, F32 z) { return _mm256_fmadd_ps(x, y, z); }
  LOWBIT_INLINE F32 clamp(F32 x, F32 lo, F32 hi) { return _mm256_max_ps(lo, _mm256_min_ps(hi, x)); }
  LOWBIT_INLINE F64 clamp(F64 x, F64 lo, F64 hi) {
    return {_mm256_max_pd(lo.lo, _mm256_min_pd(hi.lo, x.lo)), _mm256_max_pd(lo.hi, _mm256_min_pd(hi.hi, x.hi))};
  }
  static constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  LOWBIT_INLINE F32 round(F32 x) { return _mm256_round_ps(x, kNearest); }
  LOWBIT_INLINE F64 round(F64 x) { return {_mm256_round_pd(x.lo, kNearest), _mm256_round_pd(x.hi, kNearest)}; }
  LOWBIT_INLINE F32 add(F32 x, F32 y) { return _mm256_add_ps(x, y); }
  LOWBIT_INLINE F64 add(F64 x, F64 y) { return {_mm256_add_pd(x.lo, y.lo), _mm256_add_pd(x.hi, y.hi)}; }
  LOWBIT_INLINE F32 sub(F32 x, F32 y) { return _mm256_sub_ps(x, y); }
  LOWBIT_INLINE F64 sub(F64 x, F64 y) { return {_mm256_sub_pd(x.lo, y.lo), _mm256_sub_pd(x.hi, y.hi)}; }
  LOWBIT_INLINE void stream(float* p, F32 x) { _mm256_stream_ps(p, x); }
  LOWBIT_INLINE void stream(double* p, F64 x) { _mm256_stream_pd(p, x.lo), _mm256_stream_pd(p + 4, x.hi); }
  LOWBIT_INLINE F32 only_in(F32 r, F32 lo, F32 hi, F32 v) {
    const F32 inside = _mm256_and_ps(_mm256_cmp_ps(r, lo, _CMP_GE_OQ), _mm256_cmp_ps(r, hi, _CMP_LE_OQ));
    return _mm256_and_ps(inside, v);
  }
  LOWBIT_INLINE F32 only_below(F32 r, F32 lo, F32 v) { return _mm256_and_ps(_mm256_cmp_ps(r, lo, _CMP_LT_OQ), v); }
  LOWBIT_INLINE F32 only_above(F32 r, F32 hi, F32 v) { return _mm256_and_ps(_mm256_cmp_ps(r, hi, _CMP_GT_OQ), v); }
  LOWBIT_INLINE __m256d only_in(__m256d r, __m256d lo, __m256d hi, __m256d v) {
    const __m256d inside = _mm256_and_pd(_mm256_cmp_pd(r, lo, _CMP_GE_OQ), _mm256_cmp_pd(r, hi, _CMP_LE_OQ));
    return _mm256_and_pd(inside, v);
  }
  LOWBIT_INLINE F64 only_in(F64 r, F64 lo, F64 hi, F64 v) {
    return {only_in(r.lo, lo.lo, hi.lo, v.lo), only_in(r.hi, lo.hi, hi.hi, v.hi)};
  }
  LOWBIT_INLINE F64 only_below(F64 r, F64 lo, F64 v) {
    return {_mm256_and_pd(_mm256_cmp_pd(r.lo, lo.lo, _CMP_LT_OQ), v.lo),
            _mm256_and_pd(_mm256_cmp_pd(r.hi, lo.hi, _CMP_LT_OQ), v.hi)};
  }
  LOWBIT_INLINE F64 only_above(F64 r, F64 hi, F64 v) {
    return {_mm256_and_pd(_mm256_cmp_pd(r.lo, hi.lo, _CMP_GT_OQ), v.lo),
            _mm256_and_pd(_mm256_cmp_pd(r.hi, hi.hi, _CMP_GT_OQ), v.hi)};
  }
  LOWBIT_INLINE uint32_t equal_bits(F32 x, F32 y) {
    return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(x, y, _CMP_EQ_OQ)));
  }
  LOWBIT_INLINE uint32_t equal_bits(F32x2 x, F32x2 y) {  // in the order of memory
    const __m256i even = _mm256_castps_si256(_mm256_cmp_ps(x.a, y.a, _CMP_EQ_OQ));
    const __m256i odd = _mm256_castps_si256(_mm256_cmp_ps(x.b, y.b, _CMP_EQ_OQ));
    const __m256i each = _mm256_blend_epi16(even, odd, 0xaa);
    const uint32_t bits = static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_packs_epi16(each, each)));
    return (bits & 0xff) | (bits >> 8 & 0xff00);
  }
  LOWBIT_INLINE uint32_t equal_bits(F64 x, F64 y) {
    const int lo = _mm256_movemask_pd(_mm256_cmp_pd(x.lo, y.lo, _CMP_EQ_OQ));
    return static_cast<uint32_t>(lo | _mm256_movemask_pd(_mm256_cmp_pd(x.hi, y.hi, _CMP_EQ_OQ)) << 4);
  }
  LOWBIT_INLINE I32 round_i32(F32 y) { return _mm256_cvtps_epi32(y); }
  LOWBIT_INLINE I32 round_i32(F64 y) { return _mm256_set_m128i(_mm256_cvtpd_epi32(y.hi), _mm256_cvtpd_epi32(y.lo)); }
  LOWBIT_INLINE F32 to_f32(I32 i) { return _mm256_cvtepi32_ps(i); }
  LOWBIT_INLINE F64 to_f64(I32 i) {
    return {_mm256_cvtepi32_pd(_mm256_castsi256_si128(i)), _mm256_cvtepi32_pd(_mm256_extracti128_si256(i, 1))};
  }
  LOWBIT_INLINE I32 add(I32 i, I32 j) { return _mm256_add_epi32(i, j); }
  LOWBIT_INLINE I32 bit_and(I32 i, I32 j) { return _mm256_and_si256(i, j); }
  LOWBIT_INLINE I32 sub(I32 i, I32 j) { return _mm256_sub_epi32(i, j); }
  LOWBIT_INLINE I32 where_negative(I32 i, I32 v) { return _mm256_and_si256(_mm256_srai_epi32(i, 31), v); }
  LOWBIT_INLINE I32 shift_right(I32 i, int n) { return (__m256i)((__v8su)i >> n); }
  LOWBIT_INLINE I32 max(I32 i, I32 j) { return _mm256_max_epi32(i, j); }
  LOWBIT_INLINE I32 min(I32 i, I32 j) { return _mm256_min_epi32(i, j); }

  LOWBIT_INLINE I32 load_codes(const int8_t* p) {
    return _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  }
  LOWBIT_INLINE I32 load_codes(const uint8_t* p) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  }
  LOWBIT_INLINE I32 load_codes(const int16_t* p) {
    return _mm256_cvtepi16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  LOWBIT_INLINE I32 load_codes(const uint16_t* p) {
    return _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  LOWBIT_INLINE __m128i to_16(I32 i, int16_t) {
    return _mm_packs_epi32(_mm256_castsi256_si128(i), _mm256_extracti128_si256(i, 1));
  }
  LOWBIT_INLINE __m128i to_16(I32 i, uint16_t) {
    return _mm_packus_epi32(_mm256_castsi256_si128(i), _mm256_extracti128_si256(i, 1));
  }
  LOWBIT_INLINE void store_codes(int8_t* p, I32 i) {
    const __m128i h = to_16(i, int16_t{});
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(h, h));
  }
  LOWBIT_INLINE void store_codes(uint8_t* p, I32 i) {
    const __m128i h = to_16(i, int16_t{});
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packus_epi16(h, h));
  }
  LOWBIT_INLINE void store_codes(int16_t* p, I32 i) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), to_16(i, int16_t{}));
  }
  LOWBIT_INLINE void store_codes(uint16_t* p, I32 i) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), to_16(i, uint16_t{}));
  }

  LOWBIT_INLINE void store256(void* p, __m256i v) { _mm256_storeu_si256(static_cast<__m256i*>(p), v); }
  // Packing works within 128-bit lanes; one permutation at the end restores the order.
  LOWBIT_INLINE __m256i unscramble(__m256i v) {
    return _mm256_permutevar8x32_epi32(v, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  }
  // To 8 and 16 bits, saturating.
  LOWBIT_INLINE __m256i pack8(int8_t, __m256i lo, __m256i hi) { return _mm256_packs_epi16(lo, hi); }
  LOWBIT_INLINE __m256i pack8(uint8_t, __m256i lo, __m256i hi) { return _mm256_packus_epi16(lo, hi); }
  LOWBIT_INLINE __m256i pack16(int16_t, I32 lo, I32 hi) { return _mm256_packs_epi32(lo, hi); }
  LOWBIT_INLINE __m256i pack16(uint16_t, I32 lo, I32 hi) { return _mm256_packus_epi32(lo, hi); }
  LOWBIT_INLINE __m256i max8(int8_t, __m256i x, __m256i y) { return _mm256_max_epi8(x, y); }
  LOWBIT_INLINE __m256i max8(uint8_t, __m256i x, __m256i y) { return _mm256_max_epu8(x, y); }
  LOWBIT_INLINE __m256i min8(int8_t, __m256i x, __m256i y) { return _mm256_min_epi8(x, y); }
  LOWBIT_INLINE __m256i min8(uint8_t, __m256i x, __m256i y) { return _mm256_min_epu8(x, y); }
  template <class Code>
  LOWBIT_INLINE void store_codes4(Code* p, I32 a, I32 b, I32 c, I32 d) {
    if constexpr (sizeof(Code) == 1) {
      store256(p, unscramble(pack8(Code{}, _mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d))));
    } else {
      store256(p, _mm256_permute4x64_epi64(pack16(Code{}, a, b), 0xd8));
      store256(p + 16, _mm256_permute4x64_epi64(pack16(Code{}, c, d), 0xd8));
    }
  }
  struct ByteShift {
    __m256i zero, qmin;
    ByteShift(int32_t z, int32_t lo)
        : zero(_mm256_set1_epi16(static_cast<int16_t>(z))), qmin(_mm256_set1_epi8(static_cast<char>(lo))) {}
  };
  LOWBIT_INLINE __m256i shifted(I32 i, I32 j, const ByteShift& k) {
    return _mm256_adds_epi16(_mm256_packs_epi32(i, j), k.zero);
  }
  template <bool Paired>
  LOWBIT_INLINE __m256i ordered(__m256i q) {
    if constexpr (Paired) return _mm256_permute4x64_epi64(q, 0xd8);
    return unscramble(q);
  }
  template <bool Paired = false, class Code>
  LOWBIT_INLINE void store_bytes4(Code* p, I32 a, I32 b, I32 c, I32 d, const ByteShift& k) {
    const __m256i q = pack8(Code{}, shifted(a, b, k), shifted(c, d, k));
    store256(p, ordered<Paired>(max8(Code{}, q, k.qmin)));
  }

  struct Bounds {
    __m256i zero, qmin, qmax;
    Bounds(int32_t z, int32_t lo, int32_t hi)
        : zero(_mm256_set1_epi16(static_cast<int16_t>(z))),
          qmin(_mm256_set1_epi8(static_cast<char>(lo))),
          qmax(_mm256_set1_epi8(static_cast<char>(hi))) {}
  };
  template <bool Clamp, class Code>
  LOWBIT_INLINE __m256i bounded(Code, I32 a, I32 b, I32 c, I32 d, const Bounds& k) {
    const __m256i l = _mm256_packs_epi32(a, b), h = _mm256_packs_epi32(c, d);
    if constexpr (!Clamp) return pack8(Code{}, l, h);
    const __m256i q = pack8(Code{}, _mm256_add_epi16(l, k.zero), _mm256_add_epi16(h, k.zero));
    return max8(Code{}, min8(Code{}, q, k.qmax), k.qmin);
  }
  template <bool Clamp, class Code>
  LOWBIT_INLINE void store_bounded4(Code* p, I32 a, I32 b, I32 c, I32 d, const Bounds& k) {
    store256(p, unscramble(bounded<Clamp>(Code{}, a, b, c, d, k)));
  }
  template <bool Clamp, class Code>
  LOWBIT_INLINE void store_nibbles4(Code, uint8_t* p, I32 a, I32 b, I32 c, I32 d, const Bounds& k) {
    __m256i q = bounded<Clamp>(Code{}, a, b, c, d, k);
    if constexpr (static_cast<Code>(-1) < 0) q = _mm256_and_si256(q, _mm256_set1_epi8(0x0f));
    const __m256i pairs = _mm256_maddubs_epi16(q, _mm256_set1_epi16(0x1001));
    const __m128i bytes = _mm_packus_epi16(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
    const __m128i r = _mm_shuffle_epi8(bytes, _mm_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), r);
  }

  LOWBIT_INLINE F32 min_skip_nan(F32 x, F32 acc) { return _mm256_min_ps(x, acc); }
  LOWBIT_INLINE F32 max_skip_nan(F32 x, F32 acc) { return _mm256_max_ps(x, acc); }
  LOWBIT_INLINE F64 min_skip_nan(F64 x, F64 acc) { return {_mm256_min_pd(x.lo, acc.lo), _mm256_min_pd(x.hi, acc.hi)}; }
  LOWBIT_INLINE F64 max_skip_nan(F64 x, F64 acc) { return {_mm256_max_pd(x.lo, acc.lo), _mm256_max_pd(x.hi, acc.hi)}; }
  using Flag = __m256;
  LOWBIT_INLINE Flag no_nan() { return _mm256_setzero_ps(); }
  LOWBIT_INLINE Flag note_nan(Flag f, F32 x, F32 y) { return _mm256_or_ps(f, _mm256_cmp_ps(x, y, _CMP_UNORD_Q)); }
  LOWBIT_INLINE Flag note_nan(Flag f, F64 x, F64 y) {
    const __m256d nan = _mm256_or_pd(_mm256_cmp_pd(x.lo, y.lo, _CMP_UNORD_Q), _mm256_cmp_pd(x.hi, y.hi, _CMP_UNORD_Q));
    return _mm256_or_ps(f, _mm256_castpd_ps(nan));
  }
  LOWBIT_INLINE bool any(Flag f) { return _mm256_movemask_ps(f) != 0; }
  LOWBIT_INLINE I32 positive(F32 x) {
    return _mm256_srli_epi32(_mm256_castps_si256(_mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_GT_OQ)), 31);
  }
  LOWBIT_INLINE I32 positive(F64 x) {
    const __m256d zero = _mm256_setzero_pd();
    const __m256 lo = _mm256_castpd_ps(_mm256_cmp_pd(x.lo, zero, _CMP_GT_OQ));
    const __m256 hi = _mm256_castpd_ps(_mm256_cmp_pd(x.hi, zero, _CMP_GT_OQ));
    const __m256d joined = _mm256_castps_pd(_mm256_shuffle_ps(lo, hi, 0x88));
    return _mm256_srli_epi32(_mm256_permute4x64_epi64(_mm256_castpd_si256(joined), 0xd8), 31);
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
  LOWBIT_INLINE double reduce_min(F64 x) {
    const __m256d w = _mm256_min_pd(x.lo, x.hi);
    const __m128d v = _mm_min_pd(_mm256_castpd256_pd128(w), _mm256_extractf128_pd(w, 1));
    return _mm_cvtsd_f64(_mm_min_sd(v, _mm_unpackhi_pd(v, v)));
  }
  LOWBIT_INLINE double reduce_max(F64 x) {
    const __m256d w = _mm256_max_pd(x.lo, x.hi);
    const __m128d v = _mm_max_pd(_mm256_castpd256_pd128(w), _mm256_extractf128_pd(w, 1));
    return _mm_cvtsd_f64(_mm_max_sd(v, _mm_unpackhi_pd(v, v)));
  }

  LOWBIT_INLINE F32 kept(F32 x) {
    asm("" : "+x"(x));
    return x;
  }
  LOWBIT_INLINE I32 bits(F32 x) { return _mm256_castps_si256(x); }
  LOWBIT_INLINE I32 max_u32(I32 i, I32 j) { return _mm256_max_epu32(i, j); }
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
    return max(_mm256_permute2x128_si256(a, b, 0x20), _mm256_permute2x128_si256(a, b, 0x31));
  }
  LOWBIT_INLINE void reduce_rows_max_i32(const I32* rows, int count, int32_t* out) {
    for (int r = 0; r < count; r += 8)
      _mm256_storeu_si256(reinterpret_cast<I32*>(out + r),
                          fold_rows(rows + r, [](I32 i, I32 j) { return _mm256_max_epi32(i, j); }));
  }
  LOWBIT_INLINE void reduce_rows_max_u32(const I32* rows, int count, uint32_t* out) {
    for (int r = 0; r < count; r += 8)
      _mm256_storeu_si256(reinterpret_cast<I32*>(out + r),
                          fold_rows(rows + r, [](I32 i, I32 j) { return _mm256_max_epu32(i, j); }));
  }
  LOWBIT_INLINE I32 magnitude(F32 x) { return _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7fffffff)); }
  LOWBIT_INLINE int32_t reduce_max_i32(I32 i) {
    __m128i v = _mm_max_epi32(_mm256_castsi256_si128(i), _mm256_extracti128_si256(i, 1));
    v = _mm_max_epi32(v, _mm_shuffle_epi32(v, 0x4e));
    return _mm_cvtsi128_si32(_mm_max_epi32(v, _mm_shuffle_epi32(v, 0xb1)));
  }

  struct Sum8 {
    __m256d lo = _mm256_setzero_pd(), hi = _mm256_setzero_pd();
  };
  LOWBIT_INLINE F64 to_f64(F32 x) {
    return {_mm256_cvtps_pd(_mm256_castps256_ps128(x)), _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1))};
  }
  LOWBIT_INLINE F64 to_f64(F64 x) { return x; }
  template <class In>
  LOWBIT_INLINE void sum_abs(Sum8& acc, const In* p) {
    const F64 x = to_f64(load(p));
    const __m256d sign = _mm256_set1_pd(-0.0);
    acc.lo = _mm256_add_pd(acc.lo, _mm256_andnot_pd(sign, x.lo));
    acc.hi = _mm256_add_pd(acc.hi, _mm256_andnot_pd(sign, x.hi));
  }
  template <class T>
  LOWBIT_INLINE void sum_products(Sum8& acc, const T* p, const T* q) {
    const F64 x = to_f64(load(p)), y = to_f64(load(q));
    acc.lo = _mm256_add_pd(acc.lo, _mm256_mul_pd(x.lo, y.lo));
    acc.hi = _mm256_add_pd(acc.hi, _mm256_mul_pd(x.hi, y.hi));
  }
  LOWBIT_INLINE void add_products(Sum8& acc, F64 x, F64 y) {
    acc.lo = _mm256_add_pd(acc.lo, _mm256_mul_pd(x.lo, y.lo));
    acc.hi = _mm256_add_pd(acc.hi, _mm256_mul_pd(x.hi, y.hi));
  }
  LOWBIT_INLINE void add_products(Sum8& acc, F32 x, F32 y) { add_products(acc, to_f64(x), to_f64(y)); }
  LOWBIT_INLINE bool all_in(F32 r, F32 lo, F32 hi) {
    return _mm256_movemask_ps(_mm256_and_ps(_mm256_cmp_ps(r, lo, _CMP_GE_OQ), _mm256_cmp_ps(r, hi, _CMP_LE_OQ))) ==
           0xff;
  }
  LOWBIT_INLINE bool all_in(F64 r, F64 lo, F64 hi) {
    const __m256d a = _mm256_and_pd(_mm256_cmp_pd(r.lo, lo.lo, _CMP_GE_OQ), _mm256_cmp_pd(r.lo, hi.lo, _CMP_LE_OQ));
    const __m256d b = _mm256_and_pd(_mm256_cmp_pd(r.hi, lo.hi, _CMP_GE_OQ), _mm256_cmp_pd(r.hi, hi.hi, _CMP_LE_OQ));
    return _mm256_movemask_pd(_mm256_and_pd(a, b)) == 0xf;
  }
  LOWBIT_INLINE void add_powers(Sum8 (&acc)[3], const float* p) {
    const F64 x = to_f64(load(p)), size = abs(x);
    acc[0].lo = _mm256_add_pd(acc[0].lo, x.lo), acc[0].hi = _mm256_add_pd(acc[0].hi, x.hi);
    // The square of a float is exact in f64: adding it in one step rounds as adding it in two.
    acc[1].lo = _mm256_fmadd_pd(x.lo, x.lo, acc[1].lo), acc[1].hi = _mm256_fmadd_pd(x.hi, x.hi, acc[1].hi);
    acc[2].lo = _mm256_add_pd(acc[2].lo, size.lo), acc[2].hi = _mm256_add_pd(acc[2].hi, size.hi);
  }
  LOWBIT_INLINE void lanes(const Sum8& acc, double* out) {
    _mm256_storeu_pd(out, acc.lo);
    _mm256_storeu_pd(out + 4, acc.hi);
  }

  static constexpr int kPairBlock = 64;
  template <int Shift>
  LOWBIT_INLINE void merge_pairs(const uint8_t* src, uint8_t* dst) {
    const __m256i weights = _mm256_set1_epi16(static_cast<int16_t>(0x0001 | (1 << (8 + Shift))));
    const __m256i mask = _mm256_set1_epi8((1 << Shift) - 1);
    const __m256i a = _mm256_and_si256(mask, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(src)));
    const __m256i b = _mm256_and_si256(mask, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(src + 32)));
    const __m256i r = _mm256_packus_epi16(_mm256_maddubs_epi16(a, weights), _mm256_maddubs_epi16(b, weights));
    store256(dst, _mm256_permute4x64_epi64(r, 0xd8));
  }
  template <int Shift>
  LOWBIT_INLINE void split_pairs(const uint8_t* src, uint8_t* dst) {
    const __m256i mask = _mm256_set1_epi8((1 << Shift) - 1);
    const __m256i v = _mm256_permute4x64_epi64(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(src)), 0xd8);
    const __m256i even = _mm256_and_si256(v, mask);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi16(v, Shift), mask);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(dst), _mm256_unpacklo_epi8(even, odd));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(dst + 32), _mm256_unpackhi_epi8(even, odd));
  }
};

}  // namespace lowbit
