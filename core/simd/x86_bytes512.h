// AVX-512 BW: 64 bytes.
#pragma once
#include "simd/bytes.h"
#include "simd/x86_vec512.h"

namespace lowbit {

struct Avx512Bytes {
  static constexpr int width = 64;
  static constexpr bool has_words = true, has_tables = false;
  using Bytes = __m512i;
  using Words = __m512i;

  LOWBIT_INLINE Bytes load(const uint8_t* p) { return _mm512_loadu_si512(p); }
  LOWBIT_INLINE void store(uint8_t* p, Bytes x) { _mm512_storeu_si512(p, x); }
  LOWBIT_INLINE Bytes set(uint8_t b) { return _mm512_set1_epi8(static_cast<char>(b)); }
  LOWBIT_INLINE Bytes flip(Bytes x, Bytes mask) { return _mm512_xor_si512(x, mask); }
  LOWBIT_INLINE Bytes greatest(int8_t, Bytes x, Bytes y) { return _mm512_max_epi8(x, y); }
  LOWBIT_INLINE Bytes greatest(uint8_t, Bytes x, Bytes y) { return _mm512_max_epu8(x, y); }
  LOWBIT_INLINE Bytes least(int8_t, Bytes x, Bytes y) { return _mm512_min_epi8(x, y); }
  LOWBIT_INLINE Bytes least(uint8_t, Bytes x, Bytes y) { return _mm512_min_epu8(x, y); }

  // Sixteen lookups of sixteen bytes. A lookup gives 0 where the index is negative, so that subtracting 16 from the
  // index before each lookup combines parts until it passes zero; a part is stored as its xor with the one before.
  struct Table {
    Bytes part[16];
    explicit Table(const uint8_t* p) {
      for (int k = 0; k < 16; ++k) {
        const __m128i here = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 16 * k));
        const __m128i before = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 16 * (k > 0 ? k - 1 : 0)));
        part[k] = _mm512_broadcast_i32x4(k % 8 == 0 ? here : _mm_xor_si128(here, before));
      }
    }
  };
  LOWBIT_INLINE Bytes lookup(const Table& t, Bytes x) {
    const Bytes step = _mm512_set1_epi8(16);
    Bytes found = _mm512_setzero_si512();
    for (int half = 0; half < 2; ++half) {
      Bytes index = half == 0 ? x : _mm512_xor_si512(x, _mm512_set1_epi8(static_cast<char>(0x80)));
      for (int k = 8 * half; k < 8 * half + 8; ++k) {
        found = _mm512_xor_si512(found, _mm512_shuffle_epi8(t.part[k], index));
        index = _mm512_subs_epi8(index, step);
      }
    }
    return found;
  }

  struct WordPair {
    Words lo, hi;
  };
  using Pairs = WordPair;
  LOWBIT_INLINE WordPair widen(Bytes x) {
    const Bytes sign = _mm512_movm_epi8(_mm512_movepi8_mask(x));
    return {_mm512_unpacklo_epi8(x, sign), _mm512_unpackhi_epi8(x, sign)};
  }
  LOWBIT_INLINE Bytes narrow(WordPair w) { return _mm512_packs_epi16(w.lo, w.hi); }
  LOWBIT_INLINE Pairs pair(Bytes x, Bytes y) { return {_mm512_unpacklo_epi8(x, y), _mm512_unpackhi_epi8(x, y)}; }
  struct Weights {
    __m512i both = _mm512_setzero_si512();
    Weights() = default;
    Weights(int wx, int wy) : both(_mm512_set1_epi16(static_cast<int16_t>(wx | (wy << 8)))) {}
  };
  LOWBIT_INLINE Words dot(const Weights& w, Words pairs) { return _mm512_maddubs_epi16(w.both, pairs); }
  LOWBIT_INLINE Words words(int16_t i) { return _mm512_set1_epi16(i); }
  LOWBIT_INLINE Words add(Words v, Words w) { return _mm512_add_epi16(v, w); }
  LOWBIT_INLINE Words add_saturating(Words v, Words w) { return _mm512_adds_epi16(v, w); }
  LOWBIT_INLINE Words sub(Words v, Words w) { return _mm512_sub_epi16(v, w); }
  template <int N>
  LOWBIT_INLINE Words shift_right(Words w) {
    return _mm512_srai_epi16(w, N);
  }
  LOWBIT_INLINE Words scale(Words w, Words by) { return _mm512_mulhrs_epi16(w, by); }

  struct Floats {
    __m512 a, b;
  };
  LOWBIT_INLINE Floats products(Words v, Words w) {
    const __m512i lo = _mm512_mullo_epi16(v, w), hi = _mm512_mulhi_epi16(v, w);
    return {_mm512_cvtepi32_ps(_mm512_unpacklo_epi16(lo, hi)), _mm512_cvtepi32_ps(_mm512_unpackhi_epi16(lo, hi))};
  }
  LOWBIT_INLINE Words narrow(__m512i i, __m512i j) { return _mm512_packs_epi32(i, j); }
};

#ifdef __AVX512VBMI__
// A type of its own, so that templates compiled with VBMI are not merged with those compiled without.
struct Avx512Vbmi : Avx512 {};

// Lookups of 128 bytes at a time. The first one leaves the indices of the other half unchanged.
struct Avx512VbmiBytes : Avx512Bytes {
  static constexpr bool has_tables = true;
  struct Table {
    Bytes part[4];
    explicit Table(const uint8_t* p) {
      for (int k = 0; k < 4; ++k) part[k] = _mm512_loadu_si512(p + 64 * k);
    }
  };
  LOWBIT_INLINE Bytes lookup(const Table& t, Bytes x) {
    const __mmask64 upper = _mm512_movepi8_mask(x), lower = _knot_mask64(upper);
    x = _mm512_mask2_permutex2var_epi8(t.part[0], x, lower, t.part[1]);
    return _mm512_mask2_permutex2var_epi8(t.part[2], x, upper, t.part[3]);
  }
  LOWBIT_INLINE Bytes add_saturating_bytes(Bytes x, Bytes y) { return _mm512_adds_epi8(x, y); }
  LOWBIT_INLINE Bytes one_more_where_less(Bytes x, Bytes y, Bytes z) {
    return _mm512_mask_add_epi8(x, _mm512_cmplt_epu8_mask(y, z), x, _mm512_set1_epi8(1));
  }
};
#endif

}  // namespace lowbit
