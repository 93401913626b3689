// Shared by the engines of AVX2 and AVX-512: V is Avx2 or Avx512.
#pragma once
#include "kernels/gemm/generic.h"
#include "simd/x86_vec.h"

namespace lowbit {

// Stores sums of columns, plus `from` with Add.
template <class V, bool Add>
LOWBIT_INLINE void store_sums(typename V::I32 sum, int32_t* c, const int32_t* from) {
  if constexpr (Add) sum = V::add(sum, V::load_i32(from));
  V::store_i32(c, sum);
}

// Multiplies u8 rows by s8 columns: one column per 32-bit lane.
template <class V>
struct X86Bytewise : DotEngine<uint8_t> {
  using Quad = typename V::I32;
  using Cols = typename V::I32;
  using Acc = typename V::I32;
  static constexpr int group = V::width, max_rows = 6;
  static constexpr bool by_block = true;

  LOWBIT_INLINE Quad load_a(const char* p, int64_t) { return V::set_i32(load_as<int32_t>(p)); }
  LOWBIT_INLINE Cols load_b(const int8_t* p) { return V::load_bytes(p); }
  template <bool Add>
  LOWBIT_INLINE void store(Acc acc, int32_t* c, int64_t, const int32_t* from, int64_t) {
    store_sums<V, Add>(acc, c, from);
  }
};

// vpmaddwd: codes widened to 16 bits, four of each of V::width / 2 columns in a register; pairs of products in 32 bits.
// Accumulators hold two sums per column.
template <class V>
struct X86Wordwise : DotEngine<int16_t> {
  static constexpr const char* name = "vpmaddwd";
  static constexpr int group = V::width;
  static constexpr bool by_block = true;

  using Quad = typename V::I32;
  struct Cols {
    Quad lo, hi;
  };
  using Acc = Cols;

  LOWBIT_INLINE Cols load_b(const int8_t* p) { return {V::load_words(p), V::load_words(p + 2 * V::width)}; }
  // Inline assembly, because compilers spill: of AVX2, twelve accumulators, two of b, one of a and one product take all
  // sixteen registers.
  LOWBIT_INLINE Quad add_product(Quad acc, Quad a, Quad b) {
    Quad product;
    asm("vpmaddwd %[b], %[a], %[product]\n\tvpaddd %[product], %[acc], %[acc]"
        : [acc] "+v"(acc), [product] "=&v"(product)
        : [a] "v"(a), [b] "v"(b));
    return acc;
  }
  LOWBIT_INLINE void dot(Acc& acc, Quad a, Cols b) {
    acc.lo = add_product(acc.lo, a, b.lo);
    acc.hi = add_product(acc.hi, a, b.hi);
  }
};

}  // namespace lowbit
