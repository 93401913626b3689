// Element-wise operations on one or two arrays of codes, with NumPy broadcasting.
#pragma once
#include <cstdint>
#include <vector>

#include "base/types.h"
#include "kernels/add_mul/add_mul.h"

namespace lowbit {

// A contiguous array of s8 or u8 codes. `shape` has as many dimensions as that of the result, with 1 where it is
// broadcast.
struct CodesOperand {
  Code code;
  const uint8_t* codes;
  float scale;
  int32_t zero;
  const std::vector<int64_t>& shape;
};

struct CodesResult {
  Code code;
  uint8_t* codes;  // contiguous; may be the memory of an operand of the same shape
  float scale;
  int32_t zero, qmin, qmax;
  const std::vector<int64_t>& shape;
};

// q = quantize(a op b). Operands broadcast along leading axes are read in place; other broadcast operands are expanded
// into a few KiB of scratch, a block at a time.
void combine(AddMulOp op, const CodesOperand& a, const CodesOperand& b, const CodesResult& q);

// q = min(max(x, lo), hi) of n codes; q may be x.
void clamp_codes(Code code, const uint8_t* x, int64_t n, int32_t lo, int32_t hi, uint8_t* q);

// q[r * stride + i] = table[x[r * length + i]]; without a table, x is copied.
void lookup_rows(const uint8_t* table, const uint8_t* x, int64_t rows, int64_t length, uint8_t* q, int64_t stride);

}  // namespace lowbit
