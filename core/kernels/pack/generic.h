// Packing merges neighbours until the byte is full: 1 -> 2 -> 4 -> 8 bits.
#pragma once
#include "kernels/pack/pack.h"
#include "simd/vec.h"

namespace lowbit {

// The low Shift bits of src[0..n), two per byte; dst gets ceil(n / 2). dst may be src.
template <class V, int Shift>
LOWBIT_INLINE int64_t merge(const uint8_t* src, int64_t n, uint8_t* dst) {
  constexpr uint8_t mask = (1 << Shift) - 1;
  int64_t i = 0;
  for (; i + V::kPairBlock <= n; i += V::kPairBlock) V::template merge_pairs<Shift>(src + i, dst + i / 2);
  for (; i + 2 <= n; i += 2) dst[i / 2] = static_cast<uint8_t>((src[i] & mask) | ((src[i + 1] & mask) << Shift));
  if (i < n) dst[i / 2] = src[i] & mask;
  return (n + 1) / 2;
}

// The inverse: dst[0..n) from src[0..ceil(n / 2)). They must not overlap.
template <class V, int Shift>
LOWBIT_INLINE void split(const uint8_t* src, int64_t n, uint8_t* dst) {
  constexpr uint8_t mask = (1 << Shift) - 1;
  int64_t i = 0;
  for (; i + V::kPairBlock <= n; i += V::kPairBlock) V::template split_pairs<Shift>(src + i / 2, dst + i);
  for (; i < n; ++i) dst[i] = static_cast<uint8_t>(src[i / 2] >> (i % 2 * Shift)) & mask;
}

template <class V, int Bits>
void pack(uint8_t* codes, int64_t n, uint8_t* bytes) {
  if constexpr (Bits == 1) {
    n = merge<V, 1>(codes, n, codes);
    n = merge<V, 2>(codes, n, codes);
  } else if constexpr (Bits == 2) {
    n = merge<V, 2>(codes, n, codes);
  }
  merge<V, 4>(codes, n, bytes);
}

template <class V, int Bits>
void unpack(const uint8_t* bytes, int64_t n, uint8_t* codes, bool is_signed) {
  constexpr int64_t kBlock = 4096;  // two intermediate widths fit in L1
  uint8_t quarter[kBlock / 4 + 64], half[kBlock / 2 + 64];
  for (int64_t start = 0; start < n; start += kBlock) {
    const int64_t m = n - start < kBlock ? n - start : kBlock;
    const uint8_t* src = bytes + start * Bits / 8;
    uint8_t* dst = codes + start;
    if constexpr (Bits == 4) {
      split<V, 4>(src, m, dst);
    } else if constexpr (Bits == 2) {
      split<V, 4>(src, (m + 1) / 2, half);
      split<V, 2>(half, m, dst);
    } else {
      split<V, 4>(src, (m + 3) / 4, quarter);
      split<V, 2>(quarter, (m + 1) / 2, half);
      split<V, 1>(half, m, dst);
    }
    if (is_signed) {
      constexpr uint8_t sign = 1 << (Bits - 1);
      for (int64_t i = 0; i < m; ++i) dst[i] = static_cast<uint8_t>((dst[i] ^ sign) - sign);
    }
  }
}

template <class V>
struct PackRows {
  static constexpr PackRow rows[] = {
#define ROW(bits) {bits, pack<V, bits>, unpack<V, bits>},
#include "kernels/pack/kernels.inc"
#undef ROW
  };
};

}  // namespace lowbit
