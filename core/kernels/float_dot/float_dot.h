// Rows of floats x times rows of floats w, lanes along k:
//
//   totals[r][c] += sum over k of x[r][k] * w[c][k]
//
// The order of the sum. Element k of a call is in lane k mod width, width being the ISA's. Each lane multiplies and
// adds in f32 a chain of at most kFloatChain elements: a product, then fused multiply-adds (scalar: a multiplication
// and an addition). A chain is widened and added to its lane's f64 sum; at the end lane l + width / 2 is added to lane
// l, then l + width / 4 ..., and lane 0 to the total. A driver that calls this for pieces of k, in order, has thereby
// an order that depends on k and the ISA only.
//
// Its error: a term passes kFloatChain roundings to f32 at most, and one more where the total is narrowed. These 7
// are 3.5 * 2^-23 of sum|terms|, whatever the data; what f64 adds stays below the remaining 0.5 * 2^-23 for
// 2^28 terms. (Products that underflow lose up to 2^-150 each.)
//
// Roofline: arithmetic. Rows x 4 products share Rows + 4 loads; widening is 5 operations for every 6 products.
#pragma once
#include "base/arch.h"
#include "base/types.h"

namespace lowbit {

constexpr int kFloatChain = 6;
constexpr int kFloatPad = 16;  // k is a multiple of it
constexpr int kFloatCols = 4;  // as is the number of rows of w

struct FloatDotArgs {
  const float* x;  // [rows][x_stride], padded with zeros
  int64_t x_stride, rows;
  const float* w;  // [columns][w_stride], padded with zeros
  int64_t w_stride, columns;
  int64_t k;
  double* totals;  // [rows][total_stride]
  int64_t total_stride;
};

struct FloatDotRow {
  Element in;
  void (*widen)(const void* x, int64_t n, float* to);  // n numbers of x, and zeros up to a multiple of kFloatPad
  void (*run)(const FloatDotArgs&);
};

constexpr int kFloatDotRows = 3;
const FloatDotRow* float_dot_rows(Isa isa);
const FloatDotRow& float_dot_row(Isa isa, Element in);

}  // namespace lowbit
