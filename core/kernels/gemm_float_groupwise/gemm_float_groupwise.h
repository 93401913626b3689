// Float x times 4- or 2-bit weights with a scale per group of k, lanes along columns:
//
//   totals[r][n] = sum over k of x[r][k] * w[k][n],   w = (code - zero) * scale, as dequantize computes it in f32
//
// b is packed as in kernels/gemm_groupwise and unpacked in registers.
//
// Order, for each column. A step of k (8 elements at 4 bits, 16 at 2) is cut into chains of four: a product, then three
// fused multiply-adds in f32 (scalar: multiplications and additions). The chains of a step are added pairwise, and at 4
// bits the sums of two steps of a group; this sum of 16 elements is widened and added to an f64 total. The order
// depends on k and the groups only, and on ISAs without FMA the result does, too.
//
// Error: a term passes at most 6 f32 roundings, as in kernels/gemm_float, whose bound holds here.
//
// Roofline: for one row, memory, with 4 operations per 16 elements of a 512-bit column: shift, lookup, scale,
// multiply-add. For several rows, the multiply-adds: a tile of 8 rows unpacks each vector once.
#pragma once
#include "base/types.h"
#include "kernels/families.h"

namespace lowbit {

struct FloatGroupwiseArgs {
  const float* x;  // [rows][x_stride], groups padded to whole steps with zeros
  int64_t x_stride, rows;
  const uint8_t* b;  // a panel, as in GroupwiseArgs; so are the next four
  int64_t columns;
  bool has_zeros;
  int32_t zero_all;
  int64_t groups, steps, last_steps;
  double* totals;  // [rows][total_stride]
  int64_t total_stride;
};

struct FloatGroupwiseRow {
  int bits;
  void (*run)(const FloatGroupwiseArgs&);
};

const FloatGroupwiseRow& gemm_float_groupwise_row(Isa isa, int bits);

}  // namespace lowbit
