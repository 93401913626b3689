// One lane: the reference for every other ISA, and the fallback.
#pragma once
#include <cmath>

#include "simd/vec.h"

namespace lowbit {

struct Scalar {
  static constexpr int width = 1;
  static constexpr bool has_fma = false, limit_needs_lo = true;
  using F32 = float;
  using F64 = double;
  using I32 = int32_t;

  template <class In>
  LOWBIT_INLINE auto load(const In* p) {
    return widen(*p);
  }
  LOWBIT_INLINE I32 load_i32(const int32_t* p) { return *p; }
  LOWBIT_INLINE void store_i32(int32_t* p, I32 i) { *p = i; }
  LOWBIT_INLINE F32 set(float x) { return x; }
  LOWBIT_INLINE F64 set(double x) { return x; }
  LOWBIT_INLINE I32 set_i32(int32_t i) { return i; }
  LOWBIT_INLINE I32 mul_i32(I32 i, I32 j) {
    return static_cast<I32>(static_cast<uint32_t>(i) * static_cast<uint32_t>(j));
  }
  template <class Out, class F>
  LOWBIT_INLINE void store(Out* p, F x) {
    narrow(p, x);
  }
  template <class Out, class F>
  LOWBIT_INLINE void store_number(Out* p, F x) {
    narrow(p, x);
  }

  template <class F>
  LOWBIT_INLINE F limit(F x, F lo, F hi) {
    const F y = x > lo ? x : lo;
    return y < hi ? y : hi;
  }
  LOWBIT_INLINE F32 abs(F32 x) { return std::fabs(x); }
  LOWBIT_INLINE F64 abs(F64 x) { return std::fabs(x); }
  LOWBIT_INLINE F32 mul(F32 x, F32 y) { return x * y; }
  LOWBIT_INLINE F64 mul(F64 x, F64 y) { return x * y; }
  LOWBIT_INLINE F32 divide(F32 x, F32 s) { return x / s; }
  LOWBIT_INLINE F64 divide(F64 x, F64 s) { return x / s; }
  template <class F>
  LOWBIT_INLINE F clamp(F x, F lo, F hi) {
    const F y = x > hi ? hi : x;
    return y < lo ? lo : y;
  }
  LOWBIT_INLINE F32 round(F32 x) { return std::rint(x); }
  LOWBIT_INLINE F64 round(F64 x) { return std::rint(x); }
  template <class F>
  LOWBIT_INLINE F add(F x, F y) {
    return x + y;
  }
  LOWBIT_INLINE I32 add(I32 i, I32 j) { return static_cast<I32>(static_cast<uint32_t>(i) + static_cast<uint32_t>(j)); }
  template <class F>
  LOWBIT_INLINE F sub(F x, F y) {
    return x - y;
  }
  LOWBIT_INLINE I32 sub(I32 i, I32 j) { return static_cast<I32>(static_cast<uint32_t>(i) - static_cast<uint32_t>(j)); }
  LOWBIT_INLINE I32 where_negative(I32 i, I32 v) { return i < 0 ? v : 0; }
  LOWBIT_INLINE I32 bit_and(I32 i, I32 j) { return i & j; }
  LOWBIT_INLINE I32 shift_right(I32 i, int n) { return static_cast<I32>(static_cast<uint32_t>(i) >> n); }
  template <class F>
  LOWBIT_INLINE F only_in(F r, F lo, F hi, F v) {
    return r >= lo && r <= hi ? v : F{0};
  }
  template <class F>
  LOWBIT_INLINE F only_below(F r, F lo, F v) {
    return r < lo ? v : F{0};
  }
  template <class F>
  LOWBIT_INLINE F only_above(F r, F hi, F v) {
    return r > hi ? v : F{0};
  }
  template <class F>
  LOWBIT_INLINE uint32_t equal_bits(F x, F y) {
    return x == y;
  }
  LOWBIT_INLINE I32 round_i32(F32 y) { return static_cast<I32>(std::lrintf(y)); }
  LOWBIT_INLINE I32 round_i32(F64 y) { return static_cast<I32>(std::lrint(y)); }
  LOWBIT_INLINE F32 to_f32(I32 i) { return static_cast<F32>(i); }
  LOWBIT_INLINE F64 to_f64(I32 i) { return static_cast<F64>(i); }
  LOWBIT_INLINE F64 to_f64(F32 x) { return static_cast<F64>(x); }
  LOWBIT_INLINE I32 max(I32 i, I32 j) { return i > j ? i : j; }
  LOWBIT_INLINE I32 min(I32 i, I32 j) { return i < j ? i : j; }

  template <class Code>
  LOWBIT_INLINE I32 load_codes(const Code* p) {
    return *p;
  }
  template <class Code>
  LOWBIT_INLINE void store_codes(Code* p, I32 i) {
    *p = static_cast<Code>(i);
  }
  template <class Code>
  LOWBIT_INLINE void store_codes4(Code* p, I32 a, I32 b, I32 c, I32 d) {
    p[0] = static_cast<Code>(a), p[1] = static_cast<Code>(b);
    p[2] = static_cast<Code>(c), p[3] = static_cast<Code>(d);
  }
  struct ByteShift {
    int32_t zero, qmin;
    ByteShift(int32_t z, int32_t lo) : zero(z), qmin(lo) {}
  };
  template <class Code>
  LOWBIT_INLINE void store_bytes4(Code* p, I32 a, I32 b, I32 c, I32 d, const ByteShift& k) {
    store_codes4(p, max(a + k.zero, k.qmin), max(b + k.zero, k.qmin), max(c + k.zero, k.qmin), max(d + k.zero, k.qmin));
  }

  template <class F>
  LOWBIT_INLINE F min_skip_nan(F x, F acc) {
    return x < acc ? x : acc;
  }
  template <class F>
  LOWBIT_INLINE F max_skip_nan(F x, F acc) {
    return x > acc ? x : acc;
  }
  using Flag = bool;
  LOWBIT_INLINE Flag no_nan() { return false; }
  template <class F>
  LOWBIT_INLINE Flag note_nan(Flag f, F x, F y) {
    return f | (x != x) | (y != y);
  }
  LOWBIT_INLINE bool any(Flag f) { return f; }
  template <class F>
  LOWBIT_INLINE I32 positive(F x) {
    return x > 0;
  }
  template <class F>
  LOWBIT_INLINE F reduce_min(F x) {
    return x;
  }
  template <class F>
  LOWBIT_INLINE F reduce_max(F x) {
    return x;
  }

  LOWBIT_INLINE I32 magnitude(F32 x) { return static_cast<I32>(float_to_bits(x) & 0x7fffffffu); }
  LOWBIT_INLINE int32_t reduce_max_i32(I32 i) { return i; }

  struct Sum8 {
    double lane[8] = {};
  };
  template <class In>
  LOWBIT_INLINE void sum_abs(Sum8& acc, const In* p) {
    for (int i = 0; i < 8; ++i) acc.lane[i] += std::fabs(static_cast<double>(widen(p[i])));
  }
  template <class T>
  LOWBIT_INLINE void sum_products(Sum8& acc, const T* p, const T* q) {
    for (int i = 0; i < 8; ++i) acc.lane[i] += static_cast<double>(p[i]) * static_cast<double>(q[i]);
  }
  LOWBIT_INLINE void add_powers(Sum8 (&acc)[3], const float* p) {
    for (int i = 0; i < 8; ++i) {
      const double x = p[i];
      acc[0].lane[i] += x, acc[1].lane[i] += x * x, acc[2].lane[i] += std::fabs(x);
    }
  }
  LOWBIT_INLINE void lanes(const Sum8& acc, double* out) {
    for (int i = 0; i < 8; ++i) out[i] = acc.lane[i];
  }

  static constexpr int kPairBlock = 16;
  template <int Shift>
  LOWBIT_INLINE void merge_pairs(const uint8_t* src, uint8_t* dst) {
    constexpr uint8_t mask = (1 << Shift) - 1;
    for (int i = 0; i < kPairBlock / 2; ++i)
      dst[i] = static_cast<uint8_t>((src[2 * i] & mask) | ((src[2 * i + 1] & mask) << Shift));
  }
  template <int Shift>
  LOWBIT_INLINE void split_pairs(const uint8_t* src, uint8_t* dst) {
    constexpr uint8_t mask = (1 << Shift) - 1;
    for (int i = kPairBlock / 2; i-- > 0;) {
      const uint8_t b = src[i];
      dst[2 * i] = b & mask;
      dst[2 * i + 1] = static_cast<uint8_t>(b >> Shift) & mask;
    }
  }
};

}  // namespace lowbit
