// Floats x times weights of 4 or 2 bits with a scale for every group of k, lanes along columns:
//
//   totals[r][n] = sum over k of x[r][k] * w[k][n],   w = (code - zero) * scale as dequantize gives it in f32
//
// b is packed as kernels/groups says, and unpacked in registers: nothing of it is written.
//
// The order of the sum, for each column. A step of k (8 places at 4 bits, 16 at 2) is cut into chains of four: a
// product, then three fused multiply-adds in f32 (scalar: multiplications and additions). Chains of a step are added
// two by two, at 4 bits those of a step and the next of its group, too; the sum of those 16 places is widened and added
// to an f64 total. That depends on k and the groups only; on ISAs without fused operations on those, too.
//
// Its error: a term passes 6 roundings to f32 at most, as in kernels/float_dot, whose bound holds here.
//
// Roofline: for one row, memory, and 4 operations for 16 places of a 512-bit column: shift, look-up, scale,
// multiply-add. For several, the multiply-adds: a tile of 8 rows unpacks a vector for eight of them.
#pragma once
#include "base/arch.h"
#include "base/types.h"

namespace lowbit {

struct FloatGroupArgs {
  const float* x;  // [rows][x_stride], groups padded to whole steps with zeros
  int64_t x_stride, rows;
  const uint8_t* b;  // a block, as in GroupArgs; the next four likewise
  int64_t columns;
  bool has_zeros;
  int32_t zero_all;
  int64_t groups, steps, last_steps;
  double* totals;  // [rows][total_stride]
  int64_t total_stride;
};

struct FloatGroupRow {
  int bits;
  void (*run)(const FloatGroupArgs&);
};

constexpr int kFloatGroupRows = 2;
const FloatGroupRow* float_group_rows(Isa isa);
const FloatGroupRow& float_group_row(Isa isa, int bits);

}  // namespace lowbit
