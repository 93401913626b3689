// q = int(clamp(rne(x / s), qmin - z, qmax - z)) + z        b1: q = x > 0
//
// The upper clamp is done on x, against (qmax - z) * s: division is monotone and (k * s) / s rounds
// back to k for |k| < 2^22, so the codes are the same and nothing overflows upwards. The lower clamp is
// done on integers, where it is cheapest: on x86 a NaN and everything too small convert to INT_MIN.
//
// Sub-byte codes come out one a byte; kernels/pack makes them dense.
#pragma once
#include "base/arch.h"
#include "base/types.h"

namespace lowbit {

struct QuantizeArgs {
  const void* x;
  void* q;
  int64_t n;            // elements
  const void* scale;    // f32, or f64 for f64 data: one; a group each; or a column each
  const void* inverse;  // columns only, a column each: reciprocal(scale).inv,
  const void* low;      //   reciprocal(scale).low,
  const void* limit;    //   and (qmax - zero) * scale
  const int32_t* zero;  // beside scale; null: all 0
  int32_t qmin, qmax;
  int64_t group;         // grouped only: elements a group, n a multiple of it
  bool divide;           // columns only: a scale lies above kMaxQuotientScale
  bool stream;           // uniform and columns only: write past the caches
  int64_t rows, stride;  // columns only: rows of n elements, so many elements apart in x and in q
};

using QuantizeFn = void (*)(const QuantizeArgs&);

// Scale and zero point from each group's own range, then its codes, while the group is at hand:
//   symmetric   s = max|x| / divisor, z = 0
//   asymmetric  [lo, hi] widened to contain 0, s = (hi - lo) / (qmax - qmin), z = clamp(rne(qmin - lo / s), qmin, qmax)
//   all zero    s = 1, z = 0;  s is at least 2^-125
struct DynamicGroupsArgs {
  const void* x;
  void* q;
  int64_t n, group;  // elements, and elements a group (n is a multiple of it)
  void* scale;       // out: one a group, compute type
  int32_t* zero;     // out; null: symmetric
  int32_t qmin, qmax;
  int32_t divisor;     // symmetric only
  int64_t* nan;        // incremented by the NaN seen
  int64_t* bad_scale;  // incremented by the scales above the contract's bound
  bool nibbles;        // two 4-bit codes a byte; group a multiple of the row's nibble_block
  bool stream;         // nibbles only: write past the caches, to a multiple of 16 bytes
};

using DynamicGroupsFn = void (*)(const DynamicGroupsArgs&);

// Whether symmetric codes lie in [qmin, qmax] by themselves: they reach from -divisor, or 0 where unsigned, to divisor.
constexpr bool needs_no_clamp(const DynamicGroupsArgs& a, bool is_signed) {
  return a.zero == nullptr && a.divisor <= a.qmax && (is_signed ? -a.divisor >= a.qmin : a.qmin == 0);
}

struct QuantizeRow {
  Element in;
  Code code;
  QuantizeFn uniform;       // one scale for all n
  QuantizeFn grouped;       // one scale a group of consecutive elements
  QuantizeFn columns;       // one scale a column
  DynamicGroupsFn dynamic;  // null for b1
  int64_t nibble_block;     // codes `dynamic` packs at once, or 0: it cannot
  // For columns: writes inverse, low and limit of a.n scales; returns what `divide` must be.
  bool (*prepare)(const QuantizeArgs& a, void* inverse, void* low, void* limit);
};

constexpr int kQuantizeRows = 20;
const QuantizeRow* quantize_rows(Isa isa);  // kQuantizeRows of them; null where the ISA is not compiled in
const QuantizeRow& quantize_row(Isa isa, Element in, Code code);

}  // namespace lowbit
