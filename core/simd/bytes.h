// The vocabulary of bytes: vectors of B::width codes as they lie in memory. Each ISA defines one struct B.
//
//   Bytes load(p), store(p, x), set(b)
//   flip(x, mask)                   x ^ mask; with 0x80 it turns u8 - 128 into s8, and back
//   greatest(Code{}, x, y), least   per lane, Code int8_t or uint8_t
//   Table(p), lookup(table, x)      p[x], p of 256 bytes
//
// Where lookups are fast (has_tables), also:
//   add_saturating_bytes(x, y)      of s8
//   one_more_where_less(x, y, z)    x + 1 where y < z as u8, else x
//
// Where has_words, also 16-bit signed lanes, for codes that are s8. A WordPair is the two vectors of words that a
// vector of bytes becomes, in the order that `narrow` restores.
//   WordPair widen(x), narrow(WordPair)       exact; saturating
//   Pairs pair(x, y)                      two vectors of which each lane holds an x and a y
//   Weights(wx, wy), dot(weights, half)   x * wx + y * wy in words, 0 <= w < 128
//   add, add_saturating, sub, shift_right<n>(w)
//   scale(w, by)                          (w * by + 2^14) >> 15, by = words(...)
//   Floats products(v, w)                 exact, as two F32; narrow(I32, I32) saturates them to words
#pragma once
#include "simd/vec.h"

namespace lowbit {

struct ScalarBytes {
  static constexpr int width = 1;
  static constexpr bool has_words = false, has_tables = false;
  using Bytes = uint8_t;

  LOWBIT_INLINE Bytes load(const uint8_t* p) { return *p; }
  LOWBIT_INLINE void store(uint8_t* p, Bytes x) { *p = x; }
  LOWBIT_INLINE Bytes set(uint8_t b) { return b; }
  LOWBIT_INLINE Bytes flip(Bytes x, Bytes mask) { return x ^ mask; }
  template <class Code>
  LOWBIT_INLINE Bytes greatest(Code, Bytes x, Bytes y) {
    return static_cast<Code>(x) > static_cast<Code>(y) ? x : y;
  }
  template <class Code>
  LOWBIT_INLINE Bytes least(Code, Bytes x, Bytes y) {
    return static_cast<Code>(x) < static_cast<Code>(y) ? x : y;
  }
  struct Table {
    const uint8_t* p;
    explicit Table(const uint8_t* from) : p(from) {}
  };
  LOWBIT_INLINE Bytes lookup(const Table& t, Bytes x) { return t.p[x]; }
};

// block(a, b, q) for every Step bytes of a run; b may be null. The last bytes go through padded copies, so that q may
// be a or b.
template <int Step, class Block>
LOWBIT_INLINE void for_each_block(const uint8_t* a, const uint8_t* b, uint8_t* q, int64_t n, const Block& block) {
  int64_t i = 0;
  for (; i + Step <= n; i += Step) block(a + i, b ? b + i : nullptr, q + i);
  if (i >= n) return;
  uint8_t x[Step] = {}, y[Step] = {}, z[Step];
  std::memcpy(x, a + i, n - i);
  if (b) std::memcpy(y, b + i, n - i);
  block(x, b ? y : nullptr, z);
  std::memcpy(q + i, z, n - i);
}

}  // namespace lowbit
