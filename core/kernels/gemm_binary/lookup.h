// Counting by lookup: for four bits of a row of a, a table of 16 bytes holds how many of them differ from each possible
// nibble of b. One byte shuffle then counts four bits of as many columns as the vector has bytes.
//
// A count of four bits fits four bits, so one table serves two rows, one in each nibble of its bytes. There are 256
// such tables, and the codes of two rows are the offsets of their tables. Three lookups add up without a carry between
// the nibbles. T accumulates whole bytes and H the upper nibbles; the lower ones are T - 16 * H modulo 256. Two upper
// nibbles are added as an average, which cannot overflow: (16 p + 16 q + 1) >> 1 = 8 (p + q).
#pragma once
#include "kernels/gemm_binary/gemm_binary.h"
#include "simd/vec.h"

namespace lowbit {

struct BinaryTables {
  alignas(64) uint8_t pair[256][16];  // [nibble of row 0 | nibble of row 1 << 4][nibble of a column]
  uint8_t one[16][16];                // for a single last row: upper nibbles are 0
};

constexpr BinaryTables make_binary_tables() {
  BinaryTables t{};
  for (int a = 0; a < 256; ++a) {
    for (int b = 0; b < 16; ++b) {
      int low = 0, high = 0;
      for (int bit = 0; bit < 4; ++bit) low += ((a ^ b) >> bit) & 1, high += ((a >> 4 ^ b) >> bit) & 1;
      t.pair[a][b] = static_cast<uint8_t>(low + 16 * high);
      if (a < 16) t.one[a][b] = static_cast<uint8_t>(low);
    }
  }
  return t;
}

template <class V>
struct BinaryLookup {
  using B = typename V::B;
  static constexpr int kVectors = kBinaryColumns / V::width;
  static constexpr int64_t kBlock = kBinaryBlock;
  static constexpr int64_t kCodeBytes = 2;
  static constexpr BinaryTables tables = make_binary_tables();

  // Two codes per byte of two rows, or of one row: offsets of their tables.
  LOWBIT_INLINE void codes_of(const uint8_t* a, const uint8_t* b, int64_t bytes, uint16_t* codes) {
    for (int64_t i = 0; i < bytes; ++i) {
      const int x = a[i], y = b[i];
      codes[2 * i] = static_cast<uint16_t>((x & 15) << 4 | (y & 15) << 8);
      codes[2 * i + 1] = static_cast<uint16_t>((x & 240) | (y & 240) << 4);
    }
  }
  LOWBIT_INLINE void codes_of(const uint8_t* a, int64_t bytes, uint16_t* codes) {
    constexpr int one = sizeof(tables.pair);
    for (int64_t i = 0; i < bytes; ++i) {
      codes[2 * i] = static_cast<uint16_t>(one + ((a[i] & 15) << 4));
      codes[2 * i + 1] = static_cast<uint16_t>(one + (a[i] & 240));
    }
  }

  static void prepare(const BinaryPrepareArgs& p) {
    if (p.bytes == 0) return;
    static constexpr uint8_t zeros[kBinaryStep] = {};
    const int64_t last = p.bytes - 1, rest = p.padded - p.bytes;
    for (int64_t r = 0; r < p.rows; r += 2) {
      const uint8_t *a = p.a + r * p.stride, *b = a + p.stride;
      uint16_t* codes = static_cast<uint16_t*>(p.codes) + r * p.padded;
      const uint8_t end_a = a[last] & p.last_mask;
      if (r + 1 < p.rows) {
        const uint8_t end_b = b[last] & p.last_mask;
        codes_of(a, b, last, codes);
        codes_of(&end_a, &end_b, 1, codes + 2 * last);
        codes_of(zeros, zeros, rest, codes + 2 * p.bytes);
      } else {
        codes_of(a, last, codes);
        codes_of(&end_a, 1, codes + 2 * last);
        codes_of(zeros, rest, codes + 2 * p.bytes);
      }
    }
  }

  // One nibble per byte: for each byte of all columns, the lower nibbles and then the upper ones.
  static void expand(const uint8_t* columns, int64_t bytes, uint8_t* scratch) {
    const B low = V::set(15);
    for (int64_t i = 0; i < bytes; ++i) {
      for (int c = 0; c < kVectors; ++c) {
        const B b = V::load(columns + i * kBinaryColumns + c * V::width);
        uint8_t* to = scratch + 2 * i * kBinaryColumns + c * V::width;
        V::store(to, V::bit_and(b, low));
        V::store(to + kBinaryColumns, V::bit_and(V::template shift_right<4>(b), low));
      }
    }
  }
  static constexpr auto kExpand = expand;

  LOWBIT_INLINE B table(uint16_t code) { return V::table(reinterpret_cast<const uint8_t*>(&tables) + code); }

  // Nibble i of a vector of columns, expanded before or extracted now; and the sum of three lookups.
  template <bool Expanded>
  LOWBIT_INLINE B nibble(const uint8_t* columns, int i) {
    if constexpr (Expanded) return V::load(columns + i * kBinaryColumns);
    const B b = V::load(columns + i / 2 * kBinaryColumns);
    return V::bit_and(i % 2 ? V::template shift_right<4>(b) : b, V::set(15));
  }
  template <bool Expanded>
  LOWBIT_INLINE B three(const B* t, const uint8_t* columns, int i) {
    const B x = V::look_up(t[i], nibble<Expanded>(columns, i)),
            y = V::look_up(t[i + 1], nibble<Expanded>(columns, i + 1)),
            z = V::look_up(t[i + 2], nibble<Expanded>(columns, i + 2));
    return V::add(V::add(x, y), z);
  }

  template <bool Expanded>
  LOWBIT_INLINE void two_rows(const BinaryDotArgs& d, const uint16_t* codes, uint16_t* counts) {
    const B upper = V::set(240);
    B total[kVectors], high[kVectors];
    for (int c = 0; c < kVectors; ++c) total[c] = high[c] = V::set(0);
    const uint8_t* columns = d.columns;
    for (int64_t i = 0; i < d.bytes; i += 3, codes += 6, columns += (Expanded ? 6 : 3) * kBinaryColumns) {
      const B t[6] = {table(codes[0]), table(codes[1]), table(codes[2]),
                      table(codes[3]), table(codes[4]), table(codes[5])};
      for (int c = 0; c < kVectors; ++c) {
        const uint8_t* at = columns + c * V::width;
        const B s = three<Expanded>(t, at, 0), u = three<Expanded>(t, at, 3);
        total[c] = V::add(V::add(total[c], s), u);
        const B both = V::average(V::bit_and(s, upper), V::bit_and(u, upper));
        high[c] = V::add(high[c], V::template shift_right<3>(both));  // no bit crosses a byte boundary
      }
    }
    const B low = V::set(15);
    for (int c = 0; c < kVectors; ++c) {
      const B times16 = V::template shift_left<4>(V::bit_and(high[c], low));
      V::widen(counts + c * V::width, V::sub(total[c], times16), d.add);
      V::widen(counts + kBinaryColumns + c * V::width, high[c], d.add);
    }
  }

  template <bool Expanded>
  LOWBIT_INLINE void one_row(const BinaryDotArgs& d, const uint16_t* codes, uint16_t* counts) {
    B total[kVectors];
    for (int c = 0; c < kVectors; ++c) total[c] = V::set(0);
    const uint8_t* columns = d.columns;
    for (int64_t i = 0; i < d.bytes; i += 3, codes += 6, columns += (Expanded ? 6 : 3) * kBinaryColumns) {
      const B t[6] = {table(codes[0]), table(codes[1]), table(codes[2]),
                      table(codes[3]), table(codes[4]), table(codes[5])};
      for (int c = 0; c < kVectors; ++c) {
        const uint8_t* at = columns + c * V::width;
        total[c] = V::add(total[c], V::add(three<Expanded>(t, at, 0), three<Expanded>(t, at, 3)));
      }
    }
    for (int c = 0; c < kVectors; ++c) V::widen(counts + c * V::width, total[c], d.add);
  }

  template <bool Expanded>
  LOWBIT_INLINE void all_rows(const BinaryDotArgs& d) {
    const uint16_t* codes = static_cast<const uint16_t*>(d.codes) + 2 * d.offset;
    int64_t r = 0;
    for (; r + 2 <= d.rows; r += 2) two_rows<Expanded>(d, codes + r * d.padded, d.counts + r * kBinaryColumns);
    if (r < d.rows) one_row<Expanded>(d, codes + r * d.padded, d.counts + r * kBinaryColumns);
  }
  static void dot(const BinaryDotArgs& d) { d.expanded ? all_rows<true>(d) : all_rows<false>(d); }
};

}  // namespace lowbit
