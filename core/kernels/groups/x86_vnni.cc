#include "kernels/groups/generic.h"
#include "simd/x86_vec512.h"

namespace lowbit {
namespace {

struct VnniGroups {
  using V = Avx512;
  static constexpr const char* name = "vpdpbusd";
  static constexpr int max_rows = 6;
  static constexpr int wide(int rows) { return rows == 1 ? 4 : 2; }
  static constexpr int64_t spill(int) { return 0; }

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
  LOWBIT_INLINE void add(Sum& sum, __m512i part, Quad a) { sum = _mm512_dpbusd_epi32(sum, part, a); }
  LOWBIT_INLINE Avx512::I32 to_i32(Sum s) { return s; }
};

}  // namespace

extern const GroupRow* const group_rows_vnni;
const GroupRow* const group_rows_vnni = GroupTable<VnniGroups>::rows;
}  // namespace lowbit
