// 32 columns per vector.
#include <immintrin.h>

#include "kernels/gemm_binary/generic.h"

namespace lowbit {
namespace {

struct Avx2Bits {
  template <class V>
  using Way = BinaryLookup<V>;
  static constexpr const char* way = "lookup";
  static constexpr int width = 32;
  using B = __m256i;

  LOWBIT_INLINE B set(uint8_t x) { return _mm256_set1_epi8(static_cast<char>(x)); }
  LOWBIT_INLINE B load(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const B*>(p)); }
  LOWBIT_INLINE void store(uint8_t* p, B x) { _mm256_storeu_si256(reinterpret_cast<B*>(p), x); }
  LOWBIT_INLINE B table(const uint8_t* p) {
    return _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(p)));
  }
  LOWBIT_INLINE B look_up(B table, B index) { return _mm256_shuffle_epi8(table, index); }
  LOWBIT_INLINE B add(B x, B y) { return _mm256_add_epi8(x, y); }
  LOWBIT_INLINE B sub(B x, B y) { return _mm256_sub_epi8(x, y); }
  LOWBIT_INLINE B bit_and(B x, B y) { return _mm256_and_si256(x, y); }
  LOWBIT_INLINE B average(B x, B y) { return _mm256_avg_epu8(x, y); }
  // Shifts 16-bit lanes: AVX2 cannot shift bytes.
  template <int Bits>
  LOWBIT_INLINE B shift_right(B x) {
    return _mm256_srli_epi16(x, Bits);
  }
  template <int Bits>
  LOWBIT_INLINE B shift_left(B x) {
    return _mm256_slli_epi16(x, Bits);
  }
  LOWBIT_INLINE void widen(uint16_t* p, B x, bool add) {
    B* to = reinterpret_cast<B*>(p);
    B lo = _mm256_cvtepu8_epi16(_mm256_castsi256_si128(x)), hi = _mm256_cvtepu8_epi16(_mm256_extracti128_si256(x, 1));
    if (add) lo = _mm256_add_epi16(lo, _mm256_loadu_si256(to)), hi = _mm256_add_epi16(hi, _mm256_loadu_si256(to + 1));
    _mm256_storeu_si256(to, lo), _mm256_storeu_si256(to + 1, hi);
  }
};

}  // namespace

constinit const KernelTable<BinaryRow> gemm_binary_rows_avx2 = BinaryRows<Avx2Bits>::rows;
}  // namespace lowbit
