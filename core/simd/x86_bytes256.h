// AVX2: 32 bytes.
#pragma once
#include "simd/bytes.h"
#include "simd/x86_vec256.h"

namespace lowbit {

struct Avx2Bytes {
  static constexpr int width = 32;
  static constexpr bool has_words = true, has_tables = false;
  using Bytes = __m256i;
  using Words = __m256i;

  LOWBIT_INLINE Bytes load(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
  LOWBIT_INLINE void store(uint8_t* p, Bytes x) { Avx2::store256(p, x); }
  LOWBIT_INLINE Bytes set(uint8_t b) { return _mm256_set1_epi8(static_cast<char>(b)); }
  LOWBIT_INLINE Bytes flip(Bytes x, Bytes mask) { return _mm256_xor_si256(x, mask); }
  LOWBIT_INLINE Bytes greatest(int8_t, Bytes x, Bytes y) { return _mm256_max_epi8(x, y); }
  LOWBIT_INLINE Bytes greatest(uint8_t, Bytes x, Bytes y) { return _mm256_max_epu8(x, y); }
  LOWBIT_INLINE Bytes least(int8_t, Bytes x, Bytes y) { return _mm256_min_epi8(x, y); }
  LOWBIT_INLINE Bytes least(uint8_t, Bytes x, Bytes y) { return _mm256_min_epu8(x, y); }

  // Sixteen lookups of sixteen bytes. A lookup gives 0 where the index is negative, so that subtracting 16 from the
  // index before each lookup combines parts until it passes zero; a part is stored as its xor with the one before.
  struct Table {
    Bytes part[16];
    explicit Table(const uint8_t* p) {
      for (int k = 0; k < 16; ++k) {
        const __m128i here = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 16 * k));
        const __m128i before = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 16 * (k > 0 ? k - 1 : 0)));
        part[k] = _mm256_broadcastsi128_si256(k % 8 == 0 ? here : _mm_xor_si128(here, before));
      }
    }
  };
  LOWBIT_INLINE Bytes lookup(const Table& t, Bytes x) {
    const Bytes step = _mm256_set1_epi8(16);
    Bytes found = _mm256_setzero_si256();
    for (int half = 0; half < 2; ++half) {
      Bytes index = half == 0 ? x : _mm256_xor_si256(x, _mm256_set1_epi8(static_cast<char>(0x80)));
      for (int k = 8 * half; k < 8 * half + 8; ++k) {
        found = _mm256_xor_si256(found, _mm256_shuffle_epi8(t.part[k], index));
        index = _mm256_subs_epi8(index, step);
      }
    }
    return found;
  }

  struct WordPair {
    Words lo, hi;
  };
  using Pairs = WordPair;
  LOWBIT_INLINE WordPair widen(Bytes x) {
    const Bytes sign = _mm256_cmpgt_epi8(_mm256_setzero_si256(), x);
    return {_mm256_unpacklo_epi8(x, sign), _mm256_unpackhi_epi8(x, sign)};
  }
  LOWBIT_INLINE Bytes narrow(WordPair w) { return _mm256_packs_epi16(w.lo, w.hi); }
  LOWBIT_INLINE Pairs pair(Bytes x, Bytes y) { return {_mm256_unpacklo_epi8(x, y), _mm256_unpackhi_epi8(x, y)}; }
  struct Weights {
    __m256i both = _mm256_setzero_si256();
    Weights() = default;
    Weights(int wx, int wy) : both(_mm256_set1_epi16(static_cast<int16_t>(wx | (wy << 8)))) {}
  };
  LOWBIT_INLINE Words dot(const Weights& w, Words pairs) { return _mm256_maddubs_epi16(w.both, pairs); }
  LOWBIT_INLINE Words words(int16_t i) { return _mm256_set1_epi16(i); }
  LOWBIT_INLINE Words add(Words v, Words w) { return _mm256_add_epi16(v, w); }
  LOWBIT_INLINE Words add_saturating(Words v, Words w) { return _mm256_adds_epi16(v, w); }
  LOWBIT_INLINE Words sub(Words v, Words w) { return _mm256_sub_epi16(v, w); }
  template <int N>
  LOWBIT_INLINE Words shift_right(Words w) {
    return _mm256_srai_epi16(w, N);
  }
  LOWBIT_INLINE Words scale(Words w, Words by) { return _mm256_mulhrs_epi16(w, by); }

  struct Floats {
    __m256 a, b;
  };
  LOWBIT_INLINE Floats products(Words v, Words w) {
    const __m256i lo = _mm256_mullo_epi16(v, w), hi = _mm256_mulhi_epi16(v, w);
    return {_mm256_cvtepi32_ps(_mm256_unpacklo_epi16(lo, hi)), _mm256_cvtepi32_ps(_mm256_unpackhi_epi16(lo, hi))};
  }
  LOWBIT_INLINE Words narrow(__m256i i, __m256i j) { return _mm256_packs_epi32(i, j); }
};

}  // namespace lowbit
