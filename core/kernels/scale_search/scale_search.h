// The scale and zero point of least weighted squared error, for 16 groups of weights at once, a lane each.
//
// With steps p = clamp(rne(x * (1 / s)), qmin - z, qmax - z), the error is sum(w * (x - s * p)^2). For each factor f
// and each offset of the zero point, the candidates are s = round(f * base) and, for the steps found with it, the scale
// of least error sum(w x p) / sum(w p^2), rounded. The first candidate of the least error is kept; the very first where
// no error is finite. Sums run over the elements in order, in float32, so that every ISA gives the same bits.
#pragma once
#include "base/types.h"
#include "kernels/families.h"

namespace lowbit {

constexpr int64_t kSearchLanes = 16;

struct ScaleSearchArgs {
  const float* x;  // [elements, lanes]
  const float* w;  // [elements, lanes], not negative
  int64_t elements;
  const float* factors;  // of the base: range / (qmax - qmin), or for symmetric codes largest magnitude / -qmin
  int64_t factor_count;  // at least 1
  float qmin, qmax;      // qmin < qmax; symmetric: qmin < 0
  bool symmetric;
  int32_t offsets;    // zero points tried: symmetric 0 to -offsets, else those up to `offsets` from the middle's
  Element rounding;   // the type that scales are stored in: f32, f16 or bf16
  float* scale;       // [lanes]
  float* zero_point;  // [lanes]
  float* error;       // [lanes]
};

using ScaleSearchFn = void (*)(const ScaleSearchArgs&);

struct ScaleSearchRow {
  ScaleSearchFn search;
};

const ScaleSearchRow& scale_search_row(Isa isa);

}  // namespace lowbit
