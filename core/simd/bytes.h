// The vocabulary of bytes: codes as they lie in memory, B::width of them a vector. Each ISA defines one struct B.
//
//   Bytes load(p), store<Stream>(p, x)     Stream: past the caches, p aligned to a vector
//   set(b), flip(x, mask)                  flip: x ^ mask; by 0x80 it turns u8 less 128 into s8, and back
//   greatest(Code{}, x, y), least(...)     lane by lane, Code int8_t or uint8_t
//   Table(p), lookup(table, x)             p[x], p of 256 bytes
//
// Where look-ups are quick (has_tables), also:
//   add_saturating_bytes(x, y)             of s8
//   one_more_where_less(x, y, z)           x + 1 where y < z as u8, else x
//
// Where has_words, also 16-bit signed lanes, for codes that are s8. Halves: the two vectors of words a vector of bytes
// becomes, in whatever order `narrow` undoes.
//   Halves widen(x), narrow(Halves)        exact; saturating
//   Pairs pair(x, y)                       two halves of which each lane holds an x and a y
//   Weights(wx, wy), dot(weights, half)    x * wx + y * wy in words, 0 <= w < 128
//   add, add_saturating, sub, shift_right<n>(w)
//   scale(w, by)                           (w * by + 2^14) >> 15, by = words(..)
//   Floats products(v, w)                  exact, as two F32; narrow(I32, I32) puts them back, saturating to words
#pragma once
#include "simd/order.h"
#include "simd/vec.h"

namespace lowbit {

struct ScalarBytes {
  static constexpr int width = 1;
  static constexpr bool has_words = false, has_tables = false;
  using Bytes = uint8_t;

  LOWBIT_INLINE Bytes load(const uint8_t* p) { return *p; }
  template <bool Stream>
  LOWBIT_INLINE void store(uint8_t* p, Bytes x) {
    *p = x;
  }
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

template <bool Is>
struct Streamed {
  static constexpr bool value = Is;
};

// block(Streamed, a, b, q) for every Step bytes of a run; b may be null. The bytes left over go through copies, so that
// q may be a or b. Streamed blocks start on a cache line.
template <int Step, class Block>
LOWBIT_INLINE void for_each_block(const uint8_t* a, const uint8_t* b, uint8_t* q, int64_t n, bool stream,
                                  const Block& block) {
  const auto rest = [&](int64_t from, int64_t to) __attribute__((always_inline)) {
    const auto at = [&](int64_t k) __attribute__((always_inline)) {
      block(Streamed<false>{}, a + from + k, b ? b + from + k : nullptr, q + from + k);
    };
    const int64_t i = from + each_block<Step>(to - from, is_better_backwards(q, a, b ? b : a), at);
    if (i >= to) return;
    uint8_t x[Step] = {}, y[Step] = {}, z[Step];
    std::memcpy(x, a + i, to - i);
    if (b) std::memcpy(y, b + i, to - i);
    block(Streamed<false>{}, x, b ? y : nullptr, z);
    std::memcpy(q + i, z, to - i);
  };
  constexpr int64_t kLine = 64;
  if (!stream || Step % kLine != 0 || n < 2 * kLine) return rest(0, n);
  const int64_t head = static_cast<int64_t>(-reinterpret_cast<uintptr_t>(q) & (kLine - 1));
  rest(0, head);
  int64_t i = head;
  for (; i + Step <= n; i += Step) block(Streamed<true>{}, a + i, b ? b + i : nullptr, q + i);
  rest(i, n);
}

}  // namespace lowbit
