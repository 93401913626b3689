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
  const void* scale;    // f32, or f64 for f64 data: one; a group each; or an element each
  const void* inverse;  // varying only, an element each: reciprocal(scale).inv,
  const void* low;      //   reciprocal(scale).low,
  const void* limit;    //   and (qmax - zero) * scale
  const int32_t* zero;  // beside scale; null: all 0
  int32_t qmin, qmax;
  int64_t group;  // grouped only: elements a group, n a multiple of it
  bool divide;    // varying only: a scale lies above kMaxQuotientScale
  bool stream;    // uniform only: write past the caches
};

using QuantizeFn = void (*)(const QuantizeArgs&);

struct QuantizeRow {
  Element in;
  Code code;
  QuantizeFn uniform;  // one scale for all n
  QuantizeFn grouped;  // one scale a group of consecutive elements
  QuantizeFn varying;  // one scale an element
};

constexpr int kQuantizeRows = 20;
const QuantizeRow* quantize_rows(Isa isa);  // kQuantizeRows of them; null where the ISA is not compiled in
const QuantizeRow& quantize_row(Isa isa, Element in, Code code);

}  // namespace lowbit
