// Eight columns in a 64-bit word, without an instruction that counts bits.
#include "kernels/gemm_binary/generic.h"

namespace lowbit {
namespace {

struct ScalarBits {
  template <class V>
  using Way = BinaryCount<V>;
  static constexpr const char* way = "words";
  static constexpr int width = 8, rows = 1;
  using B = uint64_t;
  using Code = uint64_t;

  LOWBIT_INLINE B set(uint8_t x) { return x * (~B{0} / 255); }
  LOWBIT_INLINE B spread(Code x) { return x; }
  LOWBIT_INLINE B load(const uint8_t* p) { return load_as<B>(p); }
  LOWBIT_INLINE B add(B x, B y) { return x + y; }  // no byte overflows
  LOWBIT_INLINE B bit_xor(B x, B y) { return x ^ y; }
  LOWBIT_INLINE B ones(B x) {
    x -= x >> 1 & set(0x55);
    x = (x & set(0x33)) + (x >> 2 & set(0x33));
    return (x + (x >> 4)) & set(0x0f);
  }
  LOWBIT_INLINE void widen(uint16_t* p, B x, bool add) {
    uint8_t bytes[8];
    std::memcpy(bytes, &x, 8);
    for (int i = 0; i < 8; ++i) p[i] = static_cast<uint16_t>((add ? p[i] : 0) + bytes[i]);
  }
};

}  // namespace

constinit const KernelTable<BinaryRow> gemm_binary_rows_scalar = BinaryRows<ScalarBits>::rows;
}  // namespace lowbit
