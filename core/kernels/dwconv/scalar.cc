// One channel at a time.
#include "simd/scalar.h"

#include "kernels/dwconv/generic.h"

namespace lowbit {

template <>
struct Taps<Scalar> {
  static constexpr int kBlock = 1, kVectors = 1;
  using Codes = int32_t;
  struct Pair {
    Codes a, b;
  };
  template <class X>
  LOWBIT_INLINE Codes widen(const X* p) {
    return *p;
  }
  LOWBIT_INLINE Pair pair(Codes a, Codes b) { return {a, b}; }
  // Wraps as vectors do: the sum fits 32 bits, but intermediate values may not.
  LOWBIT_INLINE int32_t sum(int32_t i, int32_t j) {
    return static_cast<int32_t>(static_cast<uint32_t>(i) + static_cast<uint32_t>(j));
  }
  LOWBIT_INLINE int32_t add(int32_t acc, int, Pair x, const int16_t* w) { return sum(acc, x.a * w[0] + x.b * w[1]); }
  LOWBIT_INLINE int32_t add_second(int32_t acc, int, Pair x, const int16_t* w) { return sum(acc, x.b * w[1]); }
  LOWBIT_INLINE int channel(int, int) { return 0; }
  LOWBIT_INLINE int place(int, int, int second) { return second; }
  LOWBIT_INLINE void store(int32_t* p, const int32_t* acc) { *p = *acc; }
  LOWBIT_INLINE void store_codes2(uint8_t* p, uint8_t* q, const int32_t* a, const int32_t* b,
                                  const Scalar::ByteShift& k, uint8_t flip) {
    *p = static_cast<uint8_t>(Scalar::max(*a + k.zero, k.qmin)) ^ flip;
    *q = static_cast<uint8_t>(Scalar::max(*b + k.zero, k.qmin)) ^ flip;
  }
};

constinit const KernelTable<DwconvRow> dwconv_rows_scalar = DwconvRows<Scalar>::rows;
}  // namespace lowbit
