// Shared by the engines that multiply u8 rows by s8 columns: one column per 32-bit lane of V, Avx2 or Avx512.
#pragma once
#include "kernels/gemm/generic.h"
#include "simd/x86_vec.h"

namespace lowbit {

template <class V>
struct X86Bytewise {
  using A = uint8_t;
  using Quad = typename V::I32;
  using Cols = typename V::I32;
  using Acc = typename V::I32;
  static constexpr GemmOperand operand = GemmOperand::u8;
  static constexpr int group = V::width, a_rows = 1, step = 1, max_rows = 6;
  static constexpr bool is_one = true, by_block = true;

  LOWBIT_INLINE Quad load_a(const char* p, int64_t) { return V::set_i32(load_as<int32_t>(p)); }
  LOWBIT_INLINE Cols load_b(const int8_t* p) { return V::load_bytes(p); }
  template <bool Add>
  LOWBIT_INLINE void store(Acc acc, int32_t* c, int64_t, const int32_t* from, int64_t) {
    if constexpr (Add) acc = V::add(acc, V::load_i32(from));
    V::store_i32(c, acc);
  }
};

}  // namespace lowbit
