// Counting where an ISA counts the bits of each byte of a vector: xor, count, add. With three-operand logic (carry),
// two bytes x and y of a xor b and the remainder `left` of earlier bytes are first added as bits. Carries are counted
// at once and weigh twice; the remainder is counted at the end:
//
//   left' = left xor x xor y = left xor (a1 xor a2) xor (b1 xor b2)     rows and columns share the brackets
//   carry = left where left' is not left (x and y differ), else x
//
// That is five operations for two bytes instead of six.
#pragma once
#include "kernels/gemm_binary/gemm_binary.h"
#include "simd/vec.h"

namespace lowbit {

template <class V>
struct BinaryCount {
  using B = typename V::B;
  using Code = typename V::Code;  // a byte of a row, repeated so far that broadcasting it is free
  static constexpr int kVectors = kBinaryColumns / V::width;
  static constexpr int64_t kCodeBytes = sizeof(Code);
  static constexpr bool kCarries = requires { &V::carry; };
  // Pairs of bytes whose carries fit a byte counter, eight each. Carries of later pairs are counted with the remainder.
  static constexpr int64_t kPairs = 31, kBlock = kCarries ? 66 : kBinaryBlock;
  static constexpr void (*kExpand)(const uint8_t*, int64_t, uint8_t*) = nullptr;

  static void prepare(const BinaryPrepareArgs& p) {
    if (p.bytes == 0) return;
    constexpr Code repeat = static_cast<Code>(~Code{0}) / 255;
    for (int64_t r = 0; r < p.rows; ++r) {
      const uint8_t* a = p.a + r * p.stride;
      Code* codes = static_cast<Code*>(p.codes) + r * p.padded;
      for (int64_t i = 0; i < p.bytes; ++i) codes[i] = static_cast<Code>(a[i] * repeat);
      codes[p.bytes - 1] = static_cast<Code>((a[p.bytes - 1] & p.last_mask) * repeat);
      for (int64_t i = p.bytes; i < p.padded; ++i) codes[i] = 0;
      if (kCarries)
        for (int64_t i = 1; i < p.padded; i += 2) codes[i] ^= codes[i - 1];
    }
  }

  template <int Rows>
  LOWBIT_INLINE void some_rows(const BinaryDotArgs& d, const Code* codes, uint16_t* counts) {
    B sum[Rows][kVectors];
    for (int r = 0; r < Rows; ++r)
      for (int c = 0; c < kVectors; ++c) sum[r][c] = V::set(0);
    for (int64_t i = 0; i < d.bytes; ++i) {
      B b[kVectors];
      for (int c = 0; c < kVectors; ++c) b[c] = V::load(d.columns + i * kBinaryColumns + c * V::width);
      for (int r = 0; r < Rows; ++r) {
        const B a = V::spread(codes[r * d.padded + i]);
        for (int c = 0; c < kVectors; ++c) sum[r][c] = V::add(sum[r][c], V::ones(V::bit_xor(a, b[c])));
      }
    }
    for (int r = 0; r < Rows; ++r)
      for (int c = 0; c < kVectors; ++c) V::widen(counts + r * kBinaryColumns + c * V::width, sum[r][c], d.add);
  }

  template <int Rows>
  LOWBIT_INLINE void some_rows_by_carries(const BinaryDotArgs& d, const Code* codes, uint16_t* counts) {
    static_assert(kVectors == 1);
    B twos[Rows], more[Rows], left[Rows];
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) twos[r] = left[r] = V::set(0);
    const uint8_t* columns = d.columns;
    int64_t i = 0;
    // Adds bytes i + at and i + at + 1; the remainder goes from `from` to `to`.
    const auto add_pair = [&](int64_t at, B(&from)[Rows], B(&to)[Rows], B(&carried)[Rows])
                              __attribute__((always_inline)) {
                                const uint8_t* const b = columns + at * kBinaryColumns;
                                const B first = V::load(b), both = V::bit_xor(first, V::load(b + kBinaryColumns));
#pragma GCC unroll 8
                                for (int r = 0; r < Rows; ++r) {
                                  const B x = V::bit_xor(V::spread(codes[r * d.padded + i + at]), first);
                                  to[r] = V::bit_xor(from[r], both, V::spread(codes[r * d.padded + i + at + 1]));
                                  carried[r] = V::add(carried[r], V::ones(V::carry(x, from[r], to[r])));
                                }
                              };
    const auto add_pairs = [&](int64_t end, B(&carried)[Rows]) __attribute__((always_inline)) {
      B next[Rows];
      for (; i + 4 <= end; i += 4, columns += 4 * kBinaryColumns) {  // two pairs, so that the remainder ends in `left`
        add_pair(0, left, next, carried);
        add_pair(2, next, left, carried);
      }
      if (i + 2 > end) return;
      add_pair(0, left, next, carried);
#pragma GCC unroll 8
      for (int r = 0; r < Rows; ++r) left[r] = next[r];
      i += 2, columns += 2 * kBinaryColumns;
    };
    add_pairs(d.bytes < 2 * kPairs ? d.bytes : 2 * kPairs, twos);
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) more[r] = V::set(0);
    add_pairs(d.bytes, more);
    const bool odd = i < d.bytes;
    const B last = odd ? V::load(columns) : V::set(0);
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
      B ones = V::add(V::ones(left[r]), V::add(more[r], more[r]));
      if (odd) ones = V::add(ones, V::ones(V::bit_xor(V::spread(codes[r * d.padded + i]), last)));
      V::widen(counts + r * kBinaryColumns, twos[r], ones, d.add);
    }
  }

  template <int Rows>
  LOWBIT_INLINE void rows_of(const BinaryDotArgs& d, const Code* codes, uint16_t* counts) {
    if constexpr (kCarries) {
      some_rows_by_carries<Rows>(d, codes, counts);
    } else {
      some_rows<Rows>(d, codes, counts);
    }
  }

  static void dot(const BinaryDotArgs& d) {
    const Code* codes = static_cast<const Code*>(d.codes) + d.offset;
    int64_t r = 0;
    for (; r + V::rows <= d.rows; r += V::rows)
      rows_of<V::rows>(d, codes + r * d.padded, d.counts + r * kBinaryColumns);
    for (; r < d.rows; ++r) rows_of<1>(d, codes + r * d.padded, d.counts + r * kBinaryColumns);
  }
};

}  // namespace lowbit
