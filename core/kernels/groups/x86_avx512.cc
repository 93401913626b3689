#include "kernels/groups/generic.h"
#include "simd/x86_vec512.h"

namespace lowbit {
namespace {

struct Avx512Groups {
  using V = Avx512;
  static constexpr const char* name = "vpmaddubsw";
  static constexpr int max_rows = 6;
  static constexpr int wide(int rows) { return rows == 1 ? 4 : 2; }
  static constexpr int64_t spill(int bits) { return bits == 4 ? 4 : 10; }  // as for AVX2

  using Cols = __m512i;
  using Quad = __m512i;
  using Sum = __m512i;

  LOWBIT_INLINE Cols load(const uint8_t* p) { return _mm512_loadu_si512(p); }
  template <int Shift, int Mask>
  LOWBIT_INLINE __m512i part(Cols c) {
    return _mm512_and_si512(Shift == 0 ? c : _mm512_srli_epi16(c, Shift), _mm512_set1_epi8(Mask));
  }
  LOWBIT_INLINE Quad load_a(const int8_t* p) {
    int four;
    std::memcpy(&four, p, 4);
    return _mm512_set1_epi32(four);
  }
  LOWBIT_INLINE Sum none() { return _mm512_setzero_si512(); }
  LOWBIT_INLINE void add(Sum& sum, __m512i part, Quad a) { sum = _mm512_add_epi16(sum, _mm512_maddubs_epi16(part, a)); }
  LOWBIT_INLINE Avx512::I32 to_i32(Sum s) { return _mm512_madd_epi16(s, _mm512_set1_epi16(1)); }
};

}  // namespace

extern const GroupRow* const group_rows_avx512;
const GroupRow* const group_rows_avx512 = GroupTable<Avx512Groups>::rows;
}  // namespace lowbit
