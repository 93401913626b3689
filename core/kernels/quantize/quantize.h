// q = int(clamp(rne(x / s), qmin - z, qmax - z)) + z        b1: q = x > 0
//
// The upper clamp is done on x, against (qmax - z) * s: division is monotone and (k * s) / s rounds
// back to k for |k| < 2^22, so the codes are the same and nothing overflows upwards. The lower clamp is
// done on integers, where it is cheapest: on x86 a NaN and everything too small convert to INT_MIN.
//
// Sub-byte codes are written one per byte; kernels/pack packs them.
#pragma once
#include "base/types.h"
#include "kernels/families.h"

namespace lowbit {

struct QuantizeArgs {
  const void* x;
  void* q;
  int64_t n;            // elements
  const void* scale;    // f32, or f64 for f64 data: one, one per group, or one per column
  const void* inverse;  // columns only, one per column: reciprocal(scale).inv,
  const void* low;      //   reciprocal(scale).low,
  const void* limit;    //   and (qmax - zero) * scale
  const int32_t* zero;  // beside scale; null: all 0
  int32_t qmin, qmax;
  int64_t group;         // grouped only: elements per group; n is a multiple of it
  bool divide;           // columns only: a scale lies above kMaxQuotientScale
  int64_t rows, stride;  // columns only: rows of n elements; row stride in x and in q
};

using QuantizeFn = void (*)(const QuantizeArgs&);

// Scale and zero point from each group's own range, then its codes, while the group is in L1:
//   symmetric   s = max|x| / divisor, z = 0
//   asymmetric  [lo, hi] widened to contain 0, s = (hi - lo) / (qmax - qmin), z = clamp(rne(qmin - lo / s), qmin, qmax)
//   all zero    s = 1, z = 0;  s is at least 2^-125
struct DynamicGroupsArgs {
  const void* x;
  void* q;
  int64_t n, group;  // elements, and elements per group; n is a multiple of it
  void* scale;       // out: one per group, of the compute type
  int32_t* zero;     // out; null: symmetric
  int32_t qmin, qmax;
  int32_t divisor;     // symmetric only
  int64_t* nan;        // incremented by the NaN seen
  int64_t* bad_scale;  // incremented by the scales above the contract's bound
  bool nibbles;        // two 4-bit codes per byte; group is a multiple of the row's nibble_block
};

using DynamicGroupsFn = void (*)(const DynamicGroupsArgs&);

// Whether symmetric codes lie in [qmin, qmax] without a clamp: they go from -divisor, or 0 where unsigned, to divisor.
constexpr bool needs_no_clamp(const DynamicGroupsArgs& a, bool is_signed) {
  return a.zero == nullptr && a.divisor <= a.qmax && (is_signed ? -a.divisor >= a.qmin : a.qmin == 0);
}

struct QuantizeRow {
  Element in;
  Code code;
  QuantizeFn uniform;       // one scale for all n
  QuantizeFn grouped;       // one scale per group of consecutive elements
  QuantizeFn columns;       // one scale per column
  DynamicGroupsFn dynamic;  // null for b1
  int64_t nibble_block;     // codes that `dynamic` packs at once; 0: it cannot pack
  // For columns: writes inverse, low and limit of a.n scales, and returns the value of `divide`.
  bool (*prepare)(const QuantizeArgs& a, void* inverse, void* low, void* limit);
};

const QuantizeRow& quantize_row(Isa isa, Element in, Code code);

}  // namespace lowbit
