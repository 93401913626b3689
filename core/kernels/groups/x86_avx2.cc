#include "kernels/groups/generic.h"
#include "simd/x86_vec256.h"

namespace lowbit {
namespace {

struct Avx2Groups {
  using V = Avx2;
  static constexpr const char* name = "vpmaddubsw";
  static constexpr int max_rows = 4;
  static constexpr int wide(int rows) { return rows == 1 ? 4 : 2; }
  // Pairs of products are at most 2 * 15 * 128 (2 * 3 * 128), and 16 bits hold 8 (42) of them.
  static constexpr int64_t spill(int bits) { return bits == 4 ? 4 : 10; }

  using Cols = __m256i;
  using Quad = __m256i;
  using Sum = __m256i;

  LOWBIT_INLINE Cols load(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
  template <int Shift, int Mask>
  LOWBIT_INLINE __m256i part(Cols c) {
    return _mm256_and_si256(Shift == 0 ? c : _mm256_srli_epi16(c, Shift), _mm256_set1_epi8(Mask));
  }
  LOWBIT_INLINE Quad load_a(const int8_t* p) {
    int four;
    std::memcpy(&four, p, 4);
    return _mm256_set1_epi32(four);
  }
  LOWBIT_INLINE Sum none() { return _mm256_setzero_si256(); }
  LOWBIT_INLINE void add(Sum& to, __m256i part, Quad a) {
    __m256i sum = to, product;
    asm("vpmaddubsw %[a], %[b], %[product]\n\tvpaddw %[product], %[sum], %[sum]"
        : [sum] "+x"(sum), [product] "=&x"(product)
        : [a] "x"(a), [b] "x"(part));
    to = sum;
  }
  LOWBIT_INLINE Avx2::I32 to_i32(Sum s) { return _mm256_madd_epi16(s, _mm256_set1_epi16(1)); }
};

}  // namespace

extern const GroupRow* const group_rows_avx2;
const GroupRow* const group_rows_avx2 = GroupTable<Avx2Groups>::rows;
}  // namespace lowbit
