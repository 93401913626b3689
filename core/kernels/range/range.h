// lo = min(x), hi = max(x), and how many NaN: one pass over the data. NaN never enters lo or hi; Inf does, so the
// caller sees it there. Signed zeros come out as +0, so the bits do not depend on the order.
//
// sum|x| in f64: blocks of kSumBlock elements; element i of a block goes to lane i mod 8, lanes are
// added in order of i, then ((0+4)+(2+6)) + ((1+5)+(3+7)); blocks are added in order. The same bits on every ISA.
#pragma once
#include "base/types.h"
#include "kernels/families.h"

namespace lowbit {

struct RangeArgs {
  const void* x;
  int64_t n;             // elements; for columns: the number of columns
  int64_t rows, stride;  // columns only: rows, and elements from one to the next
  void* lo;              // compute type: one; or a column each (columns: updated, not overwritten)
  void* hi;
  int64_t* nan;  // incremented
};

struct RangeRow {
  Element in;
  void (*run)(const RangeArgs&);                // all n into one lo, hi
  void (*columns)(const RangeArgs&);            // each column of a strided block of rows
  double (*sum_abs)(const void* x, int64_t n);  // n <= kSumBlock
};

const RangeRow& range_row(Isa isa, Element in);

}  // namespace lowbit
