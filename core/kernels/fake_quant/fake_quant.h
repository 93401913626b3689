// m = qmin - z <= rne(x / s) <= qmax - z; false for NaN and infinities
//
//   fake                y = float(clamp(rne(x / s), qmin - z, qmax - z)) * s;  NaN stays NaN
//   fake_backward       y = m ? dy : 0
//   quantize_backward   y = m ? dy / s : 0
//   scaled              y = dy * s                        (dequantize's gradient)
//   learned             y = m ? dy : 0, and
//                       ds = sum(dy * t), t = rne(x / s) - x / s inside, qmin - z below, qmax - z above
//                       dz = sum(dy * -s) over what is below or above
//   masked              as fake, and m as one bit per element, lowest bit first; the last byte is padded with 0
//   keep                y = m ? dy : 0, m given as such bits: the gradient of fake needs no more of x
//
// Masks select, they do not multiply: a clipped element with dy = Inf gives 0. In `learned`, products and sums are in
// f64, and a NaN in x adds nothing. y may be x or dy.
#pragma once
#include "base/types.h"
#include "kernels/families.h"

namespace lowbit {

enum class FakeOp { fake, fake_backward, quantize_backward, scaled };
constexpr int kFakeOps = 4;

struct FakeQuantArgs {
  const void* x;   // not for `scaled`
  const void* dy;  // not for `fake`
  void* y;
  int64_t n;
  const void* scale;    // f32, or f64 for f64 data: one per group, or one per column
  const int32_t* zero;  // beside scale
  int32_t qmin, qmax;
  int64_t group;         // grouped only: elements per group; n is a multiple of it
  int64_t rows, stride;  // columns only: rows of n elements; row stride
  bool stream;           // non-temporal stores of f32 and f64
  uint8_t* bits;         // masked only; groups are a multiple of 8 elements, or there is one group
};

struct LearnedArgs {
  FakeQuantArgs step;
  double *ds, *dz;  // learned_run: one sum each; learned_columns: one per column, accumulated
};

using FakeQuantFn = void (*)(const FakeQuantArgs&);
using LearnedFn = void (*)(const LearnedArgs&);
using KeepFn = void (*)(const void* dy, const uint8_t* bits, void* y, int64_t n);

constexpr int64_t kBand = 64;  // rows of a column summed in order, before bands are added

struct FakeQuantRow {
  Element in;
  FakeQuantFn grouped[kFakeOps];  // one scale per group of consecutive elements
  FakeQuantFn columns[kFakeOps];  // one scale per column
  LearnedFn learned_run;          // at most kSumBlock elements under one scale
  LearnedFn learned_columns;      // one scale per column
  FakeQuantFn masked;             // one scale per group of consecutive elements
  KeepFn keep;
};

const FakeQuantRow& fake_quant_row(Isa isa, Element in);

}  // namespace lowbit
