// 64 columns per vector.
#include <immintrin.h>

#include "kernels/gemm_binary/generic.h"

namespace lowbit {
namespace {

struct VpopcntBits {
  template <class V>
  using Way = BinaryCount<V>;
  static constexpr const char* way = "vpopcnt";
  static constexpr int width = 64, rows = 8;
  using Code = uint32_t;  // 32 bits are broadcast by the load itself, 8 bits by a shuffle
  using B = __m512i;

  LOWBIT_INLINE B set(uint8_t x) { return _mm512_set1_epi8(static_cast<char>(x)); }
  LOWBIT_INLINE B load(const uint8_t* p) { return _mm512_loadu_si512(p); }
  LOWBIT_INLINE B add(B x, B y) { return _mm512_add_epi8(x, y); }
  LOWBIT_INLINE B spread(Code x) { return _mm512_set1_epi32(static_cast<int>(x)); }
  LOWBIT_INLINE B bit_xor(B x, B y) { return _mm512_xor_si512(x, y); }
  LOWBIT_INLINE B bit_xor(B x, B y, B z) { return _mm512_ternarylogic_epi32(x, y, z, 0x96); }
  LOWBIT_INLINE B carry(B x, B left, B next) { return _mm512_ternarylogic_epi32(x, left, next, 0xd4); }
  LOWBIT_INLINE B ones(B x) { return _mm512_popcnt_epi8(x); }
  // Each of `twos` counts twice.
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

}  // namespace

constinit const KernelTable<BinaryRow> gemm_binary_rows_vpopcnt = BinaryRows<VpopcntBits>::rows;
}  // namespace lowbit
