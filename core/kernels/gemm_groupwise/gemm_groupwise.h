// int8 activations times 4- or 2-bit weights with a scale per group of k:
//
//   dot_g[n] = sum over k in group g of a[k] * (b[k][n] - zero_g[n])    exact in int32
//   y[n]     = sum over g, in order, of f32(dot_g[n]) * s,  s = scale_g[n], or a_scale_g * scale_g[n] where a has
//   scales
//              per group, too; every float operation is rounded on its own
//
// b is packed once, for every ISA alike, in panels of kGroupCols columns; the last panel has a multiple of
// kGroupVector. A panel consists of steps of 32 / bits elements of k. A step has four bytes per column, whose low bits
// are the first quad of k, the next bits the second quad, and so on. Codes are unsigned (signed ones are shifted), and
// groups are padded to whole steps with a = 0. After the steps of a group come its scales, a float per column, and its
// zero points if it has any, a byte per column. Codes are unpacked in registers: b is the u8 operand of vpmaddubsw,
// whose products of at most 15 * 128 leave room for eight sums in 16 bits.
//
// Roofline: for one row, memory: bits / 8 bytes per product, read in one stream. For many rows, vpmaddubsw + vpaddw: 32
// products per 2 operations, where int8 needs 3 or 4.
#pragma once
#include "base/types.h"
#include "kernels/families.h"

namespace lowbit {

constexpr int kGroupCols = 64, kGroupVector = 16;
constexpr int64_t kGroupPrefetch = 8192;  // prefetch distance in b, in bytes, for weights in DRAM

static inline __attribute__((always_inline)) void prefetch_weights(const uint8_t* b) {
  __builtin_prefetch(b + kGroupPrefetch);
}

struct GroupwiseArgs {
  const int8_t* a;  // [rows][a_stride], groups padded to whole steps
  int64_t a_stride;
  const int32_t* a_sum;  // [rows][groups]
  const float* a_scale;  // [rows][groups], or null
  int64_t rows;
  const uint8_t* b;  // a panel
  int64_t columns;   // of the panel: a multiple of kGroupVector, at most kGroupCols
  bool has_zeros;    // in b; else zero_all
  int32_t zero_all;
  int64_t groups;
  int64_t steps, last_steps;  // of a group, and of the last
  float* c;                   // [rows][c_stride]
  int64_t c_stride;
};

struct GroupwiseRow {
  int bits;
  const char* method;  // how it multiplies
  void (*run)(const GroupwiseArgs&);
};

const GroupwiseRow& gemm_groupwise_row(Isa isa, int bits);

}  // namespace lowbit
