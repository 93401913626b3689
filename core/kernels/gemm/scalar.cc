#include "kernels/gemm/generic.h"

namespace lowbit {
namespace {

struct ScalarDot : DotEngine<int16_t> {
  static constexpr const char* name = "multiply";
  static constexpr int max_rows = 2;
  static constexpr bool is_one = false;
  static constexpr int wide(int) { return 1; }

  struct Quad {
    int16_t k[4];
  };
  struct Cols {
    int8_t k[16];
  };
  struct Acc {
    int32_t n[4];
  };

  LOWBIT_INLINE Quad load_a(const char* p, int64_t) { return load_as<Quad>(p); }
  LOWBIT_INLINE Cols load_b(const int8_t* p) { return load_as<Cols>(p); }
  LOWBIT_INLINE void dot(Acc& acc, const Quad& a, const Cols& b) {
    for (int n = 0; n < 4; ++n)
      for (int k = 0; k < 4; ++k) acc.n[n] += a.k[k] * b.k[4 * n + k];
  }
  template <bool Add>
  LOWBIT_INLINE void store(const Acc& acc, int32_t* c, int64_t, const int32_t* from, int64_t) {
    for (int n = 0; n < 4; ++n) c[n] = acc.n[n] + (Add ? from[n] : 0);
  }
};

}  // namespace

constinit const KernelTable<GemmRow> gemm_rows_scalar = GemmRows<ScalarDot>::rows;
}  // namespace lowbit
