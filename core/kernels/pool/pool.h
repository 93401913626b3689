// Pooling over rows of codes:
//   largest  q[i] = max over the rows of row[i]
//   total    sum[i] = sum over the rows of row[i], exact in 32 bits
//   average  q[i] = clamp(rne(f32(sum[i] - zero) * by) + zy, qmin, qmax)
#pragma once
#include "base/types.h"
#include "kernels/families.h"

namespace lowbit {

struct RowsArgs {
  const void* const* rows;  // `count` pointers to n codes each
  int64_t count;            // at least 1
  int64_t n;
  void* out;  // codes, or int32_t for total; not one of the rows
};

struct AverageArgs {
  const int32_t* sum;
  void* q;
  int64_t n;
  int32_t zero;  // of all that was summed
  float by;
  int32_t zy, qmin, qmax;
};

struct PoolRow {
  Code code;
  void (*largest)(const RowsArgs&);
  void (*total)(const RowsArgs&);
  void (*average)(const AverageArgs&);
};

const PoolRow& pool_row(Isa isa, Code code);

}  // namespace lowbit
