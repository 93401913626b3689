// Weights of 4 or 2 bits with a scale for every group of k, times s8 activations:
//
//   dot_g[n] = sum over k in group g of a[k] * (b[k][n] - zero_g[n])    exact in int32
//   y[n]     = sum over g, in order, of f32(dot_g[n]) * s,  s = scale_g[n], or a_scale_g * scale_g[n] where a has
//   scales
//              for groups too; every float operation rounded by itself
//
// b is packed once, alike for every ISA: blocks of kGroupCols columns (the last of as many vectors of kGroupVector as
// are left); in a block, steps of 32 / bits places of k: a quad of four bytes for each column, whose low bits are the
// first quad of the step, the next bits the next, ... Codes are unsigned (signed ones are moved up), groups are padded
// to whole steps with a = 0. Behind the steps of a group are its scales, a float a column, and its zero points if it
// has any, a byte a column. Codes are unpacked in registers: b is the u8 side of vpmaddubsw, whose products of 15 and
// 128 leave room for eight sums in 16 bits.
//
// Roofline: for one row, memory: bits / 8 bytes a product, which it reads from front to back, all in one stream; the
// columns of a block share what they load of a. For many, vpmaddubsw + vpaddw: 32 products for 2 operations, where int8
// needs 3 or 4.
#pragma once
#include "base/arch.h"
#include "base/types.h"

namespace lowbit {

constexpr int kGroupCols = 64, kGroupVector = 16;
// b is asked for so many bytes before it is needed: what memory needs, where L3 would give as much to a quarter of it.
constexpr int64_t kGroupAhead = 8192;

struct GroupArgs {
  const int8_t* a;  // [rows][a_stride], groups padded to whole steps
  int64_t a_stride;
  const int32_t* a_sum;  // [rows][groups]
  const float* a_scale;  // [rows][groups], or null
  int64_t rows;
  const uint8_t* b;  // a block
  int64_t columns;   // of it: a multiple of kGroupVector, at most kGroupCols
  bool has_zeros;    // in b; else zero_all
  int32_t zero_all;
  int64_t groups;
  int64_t steps, last_steps;  // of a group, and of the last
  float* c;                   // [rows][c_stride]
  int64_t c_stride;
};

struct GroupRow {
  int bits;
  const char* name;  // how it multiplies
  void (*run)(const GroupArgs&);
};

constexpr int kGroupRows = 2;
const GroupRow* group_rows(Isa isa);
const GroupRow& group_row(Isa isa, int bits);

}  // namespace lowbit
