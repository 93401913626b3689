// y = float(q - z) * s, the subtraction in integers.  b1 (codes 0 and 1): y = (2q - 1) * s
#pragma once
#include "base/types.h"
#include "kernels/families.h"

namespace lowbit {

struct DequantizeArgs {
  const void* q;
  void* y;
  int64_t n;
  const void* scale;    // f32, or f64 where y is f64: one per group, or one per element
  const int32_t* zero;  // beside scale; null: all 0
  int64_t group;        // grouped only: elements per group; n is a multiple of it
};

using DequantizeFn = void (*)(const DequantizeArgs&);

struct DequantizeRow {
  Code code;
  Element out;
  DequantizeFn grouped;  // one scale per group of consecutive elements
  DequantizeFn varying;  // one per element
};

const DequantizeRow& dequantize_row(Isa isa, Code code, Element out);

}  // namespace lowbit
