// Float GEMM with a stated order of summation, lanes along k:
//
//   totals[r][c] += sum over k of x[r][k] * w[c][k]
//
// Order. Element k of a call is in lane k mod width, where width is that of the ISA. Each lane accumulates chains of at
// most kFloatChain elements in f32: a product, then fused multiply-adds (scalar: a multiplication and an addition). A
// chain is widened and added to the f64 accumulator of its lane. At the end lane l + width / 2 is added to lane l, then
// l + width / 4, ..., and lane 0 to the total. A driver that calls this for consecutive blocks of k therefore gets an
// order that depends on k and the ISA only.
//
// Error. A term passes at most kFloatChain f32 roundings, and one more where the total is narrowed. These 7 are
// 3.5 * 2^-23 of sum|terms|, whatever the data; what f64 adds stays below the remaining 0.5 * 2^-23 for 2^28 terms.
// (Products that underflow lose up to 2^-150 each.)
//
// Roofline: arithmetic. Rows x 4 products share Rows + 4 loads; widening takes 5 operations per 6 products.
#pragma once
#include "base/types.h"
#include "kernels/families.h"

namespace lowbit {

constexpr int kFloatChain = 6;
constexpr int kFloatPad = 16;  // k is a multiple of it
constexpr int kFloatCols = 4;  // the number of rows of w is a multiple of it

struct GemmFloatArgs {
  const float* x;  // [rows][x_stride], padded with zeros
  int64_t x_stride, rows;
  const float* w;  // [columns][w_stride], padded with zeros
  int64_t w_stride, columns;
  int64_t k;
  double* totals;  // [rows][total_stride]
  int64_t total_stride;
};

struct GemmFloatRow {
  Element in;
  void (*widen)(const void* x, int64_t n, float* to);  // n elements of x, zero-padded to a multiple of kFloatPad
  void (*run)(const GemmFloatArgs&);
};

const GemmFloatRow& gemm_float_row(Isa isa, Element in);

}  // namespace lowbit
