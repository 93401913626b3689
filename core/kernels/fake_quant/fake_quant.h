// m = qmin - z <= rne(x / s) <= qmax - z; false for NaN and infinities
//
//   fake                y = float(clamp(rne(x / s), qmin - z, qmax - z)) * s;  NaN stays NaN
//   fake_backward       y = m ? dy : 0
//   quantize_backward   y = m ? dy / s : 0
//   scaled              y = dy * s                        (dequantize's gradient)
//   learned             y = m ? dy : 0, and
//                       ds = sum(dy * t), t = rne(x / s) - x / s inside, qmin - z below, qmax - z above
//                       dz = sum(dy * -s) over what is below or above
//   masked              as fake, and m, a bit an element from the lowest up; a last byte ends with zeros
//   keep                y = m ? dy : 0, m given as such bits: all that fake's gradient needs of x
//
// A select, never a product: a clipped place with dy = Inf gives 0. In `learned`, products and sums are in f64 and a
// NaN in x adds nothing. y may be x or dy.
#pragma once
#include "base/arch.h"
#include "base/types.h"

namespace lowbit {

enum class FakeOp { fake, fake_backward, quantize_backward, scaled };
constexpr int kFakeOps = 4;

struct FakeQuantArgs {
  const void* x;   // not for `scaled`
  const void* dy;  // not for `fake`
  void* y;
  int64_t n;
  const void* scale;    // f32, or f64 for f64 data: a group each, or a column each
  const int32_t* zero;  // beside scale
  int32_t qmin, qmax;
  int64_t group;         // grouped only: elements a group, n a multiple of it
  int64_t rows, stride;  // columns only: rows of n elements, so many elements apart
  bool stream;           // grouped and columns only: write past the caches
  uint8_t* bits;         // masked only, where groups are a multiple of 8 elements (or there is but one)
};

struct LearnedArgs {
  FakeQuantArgs step;
  double *ds, *dz;  // learned_run: one sum each; learned_columns: one a column, added to
};

using FakeQuantFn = void (*)(const FakeQuantArgs&);
using LearnedFn = void (*)(const LearnedArgs&);
using KeepFn = void (*)(const void* dy, const uint8_t* bits, void* y, int64_t n);

constexpr int64_t kBand = 64;  // rows of a column summed at once, one after the other

struct FakeQuantRow {
  Element in;
  FakeQuantFn grouped[kFakeOps];  // one scale a group of consecutive elements
  FakeQuantFn columns[kFakeOps];  // one scale a column
  LearnedFn learned_run;          // at most kSumBlock elements under one scale
  LearnedFn learned_columns;      // one scale a column
  FakeQuantFn masked;             // one scale a group of consecutive elements
  KeepFn keep;
};

constexpr int kFakeQuantRows = 4;
const FakeQuantRow* fake_quant_rows(Isa isa);
const FakeQuantRow* fake_quant_rows_with_vbmi();  // those of avx512 with it; null where this CPU has no vpermb
const FakeQuantRow& fake_quant_row(Isa isa, Element in);

}  // namespace lowbit
