// Counting where the bits of each byte of a vector can be counted at once: xor, count, add. Where counting is slower
// than logic on three operands, two bytes and what is left of those before are added as bits first: what is carried is
// counted, twice, and what is left in the end.
#pragma once
#include "kernels/binary/binary.h"
#include "simd/vec.h"

namespace lowbit {

template <class V>
struct BinaryCount {
  using B = typename V::B;
  using Code = typename V::Code;  // a byte of a row, repeated as far as spreading it further costs nothing
  static constexpr int kVectors = kBinaryColumns / V::width;
  static constexpr int64_t kCodeBytes = sizeof(Code);
  static constexpr bool kCarries = requires { &V::majority; };
  // Pairs of bytes whose carries a byte can count, eight each. Those of the pairs after them are counted with what is
  // left.
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
    for (int r = 0; r < Rows; ++r) twos[r] = more[r] = left[r] = V::set(0);
    const uint8_t* columns = d.columns;
    int64_t i = 0;
    const auto add_pairs = [&](int64_t end, B(&carried)[Rows]) __attribute__((always_inline)) {
      for (; i + 2 <= end; i += 2, columns += 2 * kBinaryColumns) {
        const B first = V::load(columns), second = V::load(columns + kBinaryColumns);
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r) {
          const B x = V::bit_xor(V::spread(codes[r * d.padded + i]), first);
          const B y = V::bit_xor(V::spread(codes[r * d.padded + i + 1]), second);
          carried[r] = V::add(carried[r], V::ones(V::majority(left[r], x, y)));
          left[r] = V::bit_xor(left[r], x, y);
        }
      }
    };
    add_pairs(d.bytes < 2 * kPairs ? d.bytes : 2 * kPairs, twos);
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
