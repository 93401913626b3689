#include "simd/scalar.h"

#include "kernels/gemm_groupwise/generic.h"

namespace lowbit {
namespace {

struct ScalarGroups {
  using V = Scalar;
  static constexpr const char* name = "multiply";
  static constexpr int max_rows = 2;
  static constexpr int wide(int) { return 4; }
  static constexpr int64_t spill(int) { return 0; }

  using Cols = uint32_t;
  struct Quad {
    int8_t k[4];
  };
  using Sum = int32_t;

  LOWBIT_INLINE Cols load(const uint8_t* p) { return load_as<Cols>(p); }
  template <int Shift, int Mask>
  LOWBIT_INLINE uint32_t part(Cols c) {
    return (c >> Shift) & (Mask * 0x01010101u);
  }
  LOWBIT_INLINE Quad load_a(const int8_t* p) { return load_as<Quad>(p); }
  LOWBIT_INLINE void add(Sum& sum, uint32_t part, const Quad& a) {
    for (int k = 0; k < 4; ++k) sum += a.k[k] * static_cast<int32_t>((part >> (8 * k)) & 0xff);
  }
  LOWBIT_INLINE Scalar::I32 to_i32(Sum s) { return s; }
};

}  // namespace

constinit const KernelTable<GroupwiseRow> gemm_groupwise_rows_scalar = GroupwiseRows<ScalarGroups>::rows;
}  // namespace lowbit
