// 64 columns a vector.
#pragma once
#include <immintrin.h>

#include "kernels/binary/count.h"
#include "kernels/binary/lookup.h"

namespace lowbit {

struct Avx512Bytes {
  static constexpr int width = 64;
  using B = __m512i;

  LOWBIT_INLINE B set(uint8_t x) { return _mm512_set1_epi8(static_cast<char>(x)); }
  LOWBIT_INLINE B load(const uint8_t* p) { return _mm512_loadu_si512(p); }
  LOWBIT_INLINE void store(uint8_t* p, B x) { _mm512_storeu_si512(p, x); }
  LOWBIT_INLINE B add(B x, B y) { return _mm512_add_epi8(x, y); }
  LOWBIT_INLINE void widen(uint16_t* p, B x, bool add) {
    B lo = _mm512_cvtepu8_epi16(_mm512_castsi512_si256(x)), hi = _mm512_cvtepu8_epi16(_mm512_extracti64x4_epi64(x, 1));
    if (add) lo = _mm512_add_epi16(lo, _mm512_loadu_si512(p)), hi = _mm512_add_epi16(hi, _mm512_loadu_si512(p + 32));
    _mm512_storeu_si512(p, lo), _mm512_storeu_si512(p + 32, hi);
  }
};

struct Avx512Bits : Avx512Bytes {
  template <class V>
  using Way = BinaryLookup<V>;
  static constexpr const char* way = "lookup";

  LOWBIT_INLINE B table(const uint8_t* p) {
    return _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(p)));
  }
  LOWBIT_INLINE B look_up(B table, B index) { return _mm512_shuffle_epi8(table, index); }
  LOWBIT_INLINE B sub(B x, B y) { return _mm512_sub_epi8(x, y); }
  LOWBIT_INLINE B bit_and(B x, B y) { return _mm512_and_si512(x, y); }
  LOWBIT_INLINE B average(B x, B y) { return _mm512_avg_epu8(x, y); }
  // Of 16 bits, as there is no shift of bytes.
  template <int Bits>
  LOWBIT_INLINE B shift_right(B x) {
    return _mm512_srli_epi16(x, Bits);
  }
  template <int Bits>
  LOWBIT_INLINE B shift_left(B x) {
    return _mm512_slli_epi16(x, Bits);
  }
};

#if defined(__AVX512BITALG__)
struct VpopcntBits : Avx512Bytes {
  template <class V>
  using Way = BinaryCount<V>;
  static constexpr const char* way = "vpopcnt";
  static constexpr int rows = 8;
  using Code = uint32_t;  // 32 bits are spread by the load itself, 8 by a shuffle

  LOWBIT_INLINE B spread(Code x) { return _mm512_set1_epi32(static_cast<int>(x)); }
  LOWBIT_INLINE B bit_xor(B x, B y) { return _mm512_xor_si512(x, y); }
  LOWBIT_INLINE B bit_xor(B x, B y, B z) { return _mm512_ternarylogic_epi32(x, y, z, 0x96); }
  LOWBIT_INLINE B carry(B x, B left, B next) { return _mm512_ternarylogic_epi32(x, left, next, 0xd4); }
  LOWBIT_INLINE B ones(B x) { return _mm512_popcnt_epi8(x); }
  // Each of `twos` counts twice.
  using Avx512Bytes::widen;
  LOWBIT_INLINE void widen(uint16_t* p, B twos, B ones, bool add) {
    const B both_lo = _mm512_unpacklo_epi8(twos, ones), both_hi = _mm512_unpackhi_epi8(twos, ones);
    const B by = _mm512_set1_epi16(0x0102);
    const B l = _mm512_maddubs_epi16(both_lo, by), h = _mm512_maddubs_epi16(both_hi, by);  // in lanes of 128 bits
    const B low = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11), high = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
    B first = _mm512_permutex2var_epi64(l, low, h), second = _mm512_permutex2var_epi64(l, high, h);
    if (add) {
      first = _mm512_add_epi16(first, _mm512_loadu_si512(p));
      second = _mm512_add_epi16(second, _mm512_loadu_si512(p + 32));
    }
    _mm512_storeu_si512(p, first), _mm512_storeu_si512(p + 32, second);
  }
};
#endif

}  // namespace lowbit
