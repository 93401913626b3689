// AVX-512 BW: 64 bytes.
#pragma once
#include "simd/x86_bytes.h"
#include "simd/x86_vec512.h"

namespace lowbit {

struct Avx512Bytes : X86Bytes<Avx512> {};

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
