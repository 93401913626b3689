// Shared by the engines of AVX2 and AVX-512, with and without VNNI: one column per 32-bit lane of W, Avx2 or Avx512.
#pragma once
#include "kernels/gemm_groupwise/generic.h"
#include "simd/x86_vec.h"

namespace lowbit {

template <class W>
struct X86Groups {
  using V = W;
  using Cols = typename V::I32;
  using Quad = typename V::I32;
  using Sum = typename V::I32;
  static constexpr int max_rows = V::width == 8 ? 4 : 6;
  static constexpr int wide(int rows) { return rows == 1 ? 4 : 2; }
  static constexpr int64_t spill(int) { return 0; }

  LOWBIT_INLINE Cols load(const uint8_t* p) { return V::load_bytes(p); }
  template <int Shift, int Mask>
  LOWBIT_INLINE Cols part(Cols c) {
    return (Cols)((typename V::U16)c >> Shift) & V::set8(Mask);
  }
  LOWBIT_INLINE Quad load_a(const int8_t* p) { return V::set_i32(load_as<int32_t>(p)); }
  LOWBIT_INLINE Sum to_i32(Sum s) { return s; }
};

}  // namespace lowbit
