// What AVX2 and AVX-512 share. R has the operations on one register that differ: Ymm or Zmm.
#pragma once
#include <immintrin.h>

#include "simd/registers.h"

namespace lowbit {

constexpr int kToNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

template <class R>
struct X86Registers : R {
  using F32 = typename R::F32;
  using Half = typename R::Half;
  using I32 = typename R::I32;
  using U32 = typename R::U32;  // the same register, for operators on its unsigned lanes
  using R::load;
  LOWBIT_INLINE F32 load(const bfloat_t* p) { return (F32)((U32)R::load_codes(&p->bits) << 16); }
  LOWBIT_INLINE I32 add(I32 i, I32 j) { return (I32)((U32)i + (U32)j); }
  LOWBIT_INLINE I32 sub(I32 i, I32 j) { return (I32)((U32)i - (U32)j); }
  LOWBIT_INLINE I32 mul_i32(I32 i, I32 j) { return (I32)((U32)i * (U32)j); }
  LOWBIT_INLINE I32 bit_and(I32 i, I32 j) { return i & j; }
  LOWBIT_INLINE I32 shift_right(I32 i, int n) { return (I32)((U32)i >> n); }
  LOWBIT_INLINE I32 bits(F32 x) { return (I32)x; }
  // min returns its second operand if either is NaN. A NaN, or a number far below, converts to INT_MIN, so
  // the lower bound is left to the cheaper integer side.
  LOWBIT_INLINE F32 limit(F32 x, F32, F32 hi) { return R::min(hi, x); }
  LOWBIT_INLINE Half limit(Half x, Half, Half hi) { return R::min(hi, x); }
  LOWBIT_INLINE F32 min_skip_nan(F32 x, F32 acc) { return R::min(x, acc); }
  LOWBIT_INLINE Half min_skip_nan(Half x, Half acc) { return R::min(x, acc); }
  LOWBIT_INLINE F32 max_skip_nan(F32 x, F32 acc) { return R::max(x, acc); }
  LOWBIT_INLINE Half max_skip_nan(Half x, Half acc) { return R::max(x, acc); }
};

template <class R>
struct X86Vector : Registers<X86Registers<R>> {
  using Base = Registers<X86Registers<R>>;
  using F32 = typename R::F32;
  using I32 = typename R::I32;
  using U32 = typename R::U32;
  using U16 = typename R::U16;
  using F64 = typename Base::F64;
  using Sum8 = typename Base::Sum8;
  static constexpr bool limit_needs_lo = false;
  using Base::store, Base::store_number, R::stream;

  // Interleaving with zeros below widens two vectors at once, scrambled as `pack16` unscrambles.
  struct F32x4 {
    F32 a, b, c, d;
  };
  LOWBIT_INLINE F32x4 load4(const bfloat_t* p) {
    const I32 zero = {}, v = R::load_bytes(p), w = R::load_bytes(p + 2 * R::width);
    return {(F32)R::lower16(zero, v), (F32)R::upper16(zero, v), (F32)R::lower16(zero, w), (F32)R::upper16(zero, w)};
  }
  // Even and odd lanes: each is the half of a 32-bit lane.
  struct F32x2 {
    F32 a, b;
  };
  LOWBIT_INLINE F32x2 load_pair(const bfloat_t* p) {
    const U32 v = (U32)R::load_bytes(p);
    return {(F32)(v << 16), (F32)(v & 0xffff0000u)};
  }
  template <PairRounding Rounding>
  LOWBIT_INLINE U32 rounded_up_half(F32 x) {  // right in the 16 upper bits of each lane, if x is no NaN
    const U32 b = (U32)x;
    if constexpr (Rounding == PairRounding::exact) return b;
    if constexpr (Rounding == PairRounding::no_ties) return b + 0x8000;
    return b + ((b >> 16) & 1) + 0x7fff;
  }
  template <PairRounding Rounding>
  LOWBIT_INLINE void store_pair(bfloat_t* p, F32x2 x) {
    const U32 even = rounded_up_half<Rounding>(x.a) >> 16, odd = rounded_up_half<Rounding>(x.b);
    R::store_bytes(p, R::odd16((I32)even, (I32)odd));
  }
  LOWBIT_INLINE void store(bfloat_t* p, F32 x) {
    const U32 rounded = rounded_up_half<PairRounding::any>(x), nan = (U32)x | 0x400000;
    R::store_codes(&p->bits, (I32)((U32)R::where_nan(x, (F32)nan, (F32)rounded) >> 16));
  }
  // Without the care for NaN: rounding to even by addition leaves an infinity unchanged.
  LOWBIT_INLINE void store_number(bfloat_t* p, F32 x) {
    const U32 odd = (U32)x << 15 >> 31;
    R::store_codes(&p->bits, (I32)(((U32)x + odd + 0x7fff) >> 16));
  }
  LOWBIT_INLINE void stream(double* p, F64 x) { R::stream(p, x.lo), R::stream(p + Base::kHalf, x.hi); }

  LOWBIT_INLINE uint32_t equal_bits(F32 x, F32 y) { return R::mask_bits(R::equal(x, y)); }
  LOWBIT_INLINE uint32_t equal_bits(F64 x, F64 y) {
    return R::mask_bits(R::equal(x.lo, y.lo)) | R::mask_bits(R::equal(x.hi, y.hi)) << Base::kHalf;
  }
  LOWBIT_INLINE uint32_t equal_bits(F32x2 x, F32x2 y) { return R::equal_bits(x.a, x.b, y.a, y.b); }
  LOWBIT_INLINE bool all_in(F32 r, F32 lo, F32 hi) { return R::all(R::inside(r, lo, hi)); }
  LOWBIT_INLINE bool all_in(F64 r, F64 lo, F64 hi) {
    return R::all(R::inside(r.lo, lo.lo, hi.lo), R::inside(r.hi, lo.hi, hi.hi));
  }
  LOWBIT_INLINE F32 kept(F32 x) {
    asm("" : "+v"(x));
    return x;
  }
  LOWBIT_INLINE void add_products(Sum8& acc, F64 x, F64 y) {
    acc.part[0] = acc.part[0] + x.lo * y.lo;
    acc.part[Base::kParts - 1] = acc.part[Base::kParts - 1] + x.hi * y.hi;
  }
  LOWBIT_INLINE void add_products(Sum8& acc, F32 x, F32 y) { add_products(acc, Base::to_f64(x), Base::to_f64(y)); }

  // Packing works within 128-bit lanes; one permutation at the end restores the order.
  template <class Code>
  LOWBIT_INLINE void store_codes4(Code* p, I32 a, I32 b, I32 c, I32 d) {
    if constexpr (sizeof(Code) == 1) {
      R::store_bytes(p, R::unscramble8(R::pack8(Code{}, R::pack16(int16_t{}, a, b), R::pack16(int16_t{}, c, d))));
    } else {
      R::store_bytes(p, R::unscramble16(R::pack16(Code{}, a, b)));
      R::store_bytes(p + 2 * R::width, R::unscramble16(R::pack16(Code{}, c, d)));
    }
  }
  struct ByteShift {
    I32 zero, qmin;
    ByteShift(int32_t z, int32_t lo) : zero(R::set16(z)), qmin(R::set8(lo)) {}
  };
  LOWBIT_INLINE I32 shifted(I32 i, I32 j, const ByteShift& k) {
    return R::add_saturating16(R::pack16(int16_t{}, i, j), k.zero);
  }
  template <bool Paired = false, class Code>
  LOWBIT_INLINE void store_bytes4(Code* p, I32 a, I32 b, I32 c, I32 d, const ByteShift& k) {
    const I32 q = R::max8(Code{}, R::pack8(Code{}, shifted(a, b, k), shifted(c, d, k)), k.qmin);
    R::store_bytes(p, Paired ? R::unscramble16(q) : R::unscramble8(q));
  }

  struct Bounds {
    I32 zero, qmin, qmax;
    Bounds(int32_t z, int32_t lo, int32_t hi) : zero(R::set16(z)), qmin(R::set8(lo)), qmax(R::set8(hi)) {}
  };
  template <bool Clamp, class Code>
  LOWBIT_INLINE I32 bounded(Code, I32 a, I32 b, I32 c, I32 d, const Bounds& k) {
    const I32 l = R::pack16(int16_t{}, a, b), h = R::pack16(int16_t{}, c, d);
    if constexpr (!Clamp) return R::pack8(Code{}, l, h);
    const I32 q = R::pack8(Code{}, (I32)((U16)l + (U16)k.zero), (I32)((U16)h + (U16)k.zero));
    return R::max8(Code{}, R::min8(Code{}, q, k.qmax), k.qmin);
  }
  template <bool Clamp, class Code>
  LOWBIT_INLINE void store_bounded4(Code* p, I32 a, I32 b, I32 c, I32 d, const Bounds& k) {
    R::store_bytes(p, R::unscramble8(bounded<Clamp>(Code{}, a, b, c, d, k)));
  }
  template <bool Clamp, class Code>
  LOWBIT_INLINE void store_nibbles4(Code, uint8_t* p, I32 a, I32 b, I32 c, I32 d, const Bounds& k) {
    I32 q = bounded<Clamp>(Code{}, a, b, c, d, k);
    if constexpr (static_cast<Code>(-1) < 0) q = q & R::set8(0x0f);
    R::store_nibbles(p, R::add_products8(q, R::set16(0x1001)));
  }

  static constexpr int kPairBlock = 8 * R::width;
  template <int Shift>
  LOWBIT_INLINE void merge_pairs(const uint8_t* src, uint8_t* dst) {
    const I32 weights = R::set16(0x0001 | (1 << (8 + Shift))), mask = R::set8((1 << Shift) - 1);
    const I32 a = mask & R::load_bytes(src), b = mask & R::load_bytes(src + kPairBlock / 2);
    const I32 r = R::pack8(uint8_t{}, R::add_products8(a, weights), R::add_products8(b, weights));
    R::store_bytes(dst, R::unscramble16(r));
  }
  template <int Shift>
  LOWBIT_INLINE void split_pairs(const uint8_t* src, uint8_t* dst) {
    const I32 mask = R::set8((1 << Shift) - 1), v = R::scramble16(R::load_bytes(src));
    const I32 even = v & mask, odd = (I32)((U16)v >> Shift) & mask;
    R::store_bytes(dst, R::lower8(even, odd));
    R::store_bytes(dst + kPairBlock / 2, R::upper8(even, odd));
  }
};

}  // namespace lowbit
