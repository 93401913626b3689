// What both ways of counting share, and the rows.
//
// Vector operations for 256 products of bits, which are 2 * 256 operations of a matrix product:
//   nibble lookup of a xor b           8      xor, 2 and, shift, 2 lookups, 2 additions
//   carry-save adders (Harley-Seal)    6.2    xor, 15/16 of an adder's 5, 1/16 of a count
//   lookup.h                           2.8    17 per 6 nibbles of 32 columns by 2 rows
//   count.h, where bytes are counted   3      xor, count, addition; 2.5 with carries
// Operands come from L1: a panel of 64 columns is 4 KiB, the tables of lookup.h are 4 KiB, the counts of 64 rows 8 KiB.
// Codes of rows come from L2, 2 bytes per byte.
#pragma once
#include <type_traits>

#include "kernels/gemm_binary/count.h"
#include "kernels/gemm_binary/lookup.h"

namespace lowbit {

// n columns of one row of a tile.
template <class Y, bool Fix>
LOWBIT_INLINE void epilogue_columns(const BinaryEpilogueArgs& f, int64_t r, int64_t first, int64_t n) {
  const int32_t k = f.k;
  const uint16_t* counts = f.counts + first / kBinaryColumns * f.next + r * kBinaryColumns;
  const int32_t* fix = f.fix + (Fix ? r * kBinaryColumns : 0);
  Y* y = static_cast<Y*>(f.y) + r * f.stride + first;
  const float *sb = f.sb + first, *bias = f.bias + first, sa = std::is_same_v<Y, float> ? f.sa[f.sa_each ? r : 0] : 0;
  for (int64_t j = 0; j < n; ++j) {
    const int32_t count = counts[j], acc = k - count - count + (Fix ? fix[j] : 0);
    if constexpr (std::is_same_v<Y, float>) {
      y[j] = static_cast<float>(acc) * (sa * sb[j]) + bias[j];
    } else {
      y[j] = acc;
    }
  }
}

template <class V, class Y>
void binary_epilogue(const BinaryEpilogueArgs& f) {
  for (int64_t r = 0; r < f.rows; ++r) {
    if (f.fix != nullptr) {
      epilogue_columns<Y, true>(f, r, 0, f.n);
      continue;
    }
    int64_t first = 0;
    for (; first + kBinaryColumns <= f.n; first += kBinaryColumns)  // the common case, of known length
      epilogue_columns<Y, false>(f, r, first, kBinaryColumns);
    if (first < f.n) epilogue_columns<Y, false>(f, r, first, f.n - first);
  }
}

template <class V>
struct BinaryRows {
  using Way = typename V::template Way<V>;
  static constexpr BinaryRow rows[1] = {{Code::b1, V::way, Way::kCodeBytes, Way::kBlock, Way::prepare, Way::kExpand,
                                         Way::dot, binary_epilogue<V, int32_t>, binary_epilogue<V, float>}};
};

}  // namespace lowbit
