// Taps of V, Avx2 or Avx512. Interleaving works within 128-bit lanes, of eight channels each: vector 0 has the first
// four of each lane, vector 1 the others. Packing restores the order.
#pragma once
#include "kernels/dwconv/generic.h"
#include "simd/x86_vec.h"

namespace lowbit {

template <class V>
struct X86Taps {
  using I32 = typename V::I32;
  static constexpr int kBlock = 2 * V::width, kVectors = 2;
  using Codes = I32;
  struct Pair {
    I32 part[2];
  };
  template <class X>
  LOWBIT_INLINE Codes widen(const X* p) {
    return V::load_words(p);
  }
  LOWBIT_INLINE Pair pair(Codes a, Codes b) { return {{V::lower16(a, b), V::upper16(a, b)}}; }
  LOWBIT_INLINE I32 add(I32 acc, int v, const Pair& x, const int16_t* w) {
    acc = V::add(acc, V::add_products16(x.part[v], V::load_bytes(w + kBlock * v)));
    asm("" : "+v"(acc));  // otherwise compilers keep all products and add them in a tree, which spills
    return acc;
  }
  LOWBIT_INLINE I32 add_second(I32 acc, int v, const Pair& x, const int16_t* w) { return add(acc, v, x, w); }
  LOWBIT_INLINE int channel(int v, int lane) { return lane / 4 * 8 + v * 4 + lane % 4; }
  LOWBIT_INLINE int place(int v, int lane, int second) { return v * kBlock + lane * 2 + second; }
  LOWBIT_INLINE void store(int32_t* p, const I32* acc) {
    V::store_i32(p, V::lower_lanes(acc[0], acc[1]));
    V::store_i32(p + V::width, V::upper_lanes(acc[0], acc[1]));
  }
  LOWBIT_INLINE void store_codes2(uint8_t* p, uint8_t* q, const I32* a, const I32* b, const typename V::ByteShift& k,
                                  uint8_t flip) {
    const I32 bytes = V::pack8(uint8_t{}, V::shifted(a[0], a[1], k), V::shifted(b[0], b[1], k));
    const I32 codes = V::unscramble16(V::max8(uint8_t{}, bytes, k.qmin) ^ V::set8(flip));
    V::store_half(p, V::lower(codes));
    V::store_half(q, V::upper(codes));
  }
};

}  // namespace lowbit
