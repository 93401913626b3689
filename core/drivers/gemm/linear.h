// Linear layers on float activations, which are quantized on the way, a bounded number of rows at a time.
#pragma once
#include "base/types.h"
#include "drivers/elementwise/elementwise.h"
#include "drivers/gemm/gemm.h"
#include "drivers/gemm/groups.h"

namespace lowbit {

// How activations are quantized: a scale per row, from the row's range, or one given scale.
enum class Activation : int { s8_per_row = 0, u8_per_row = 1, fixed = 2 };

struct Activations {
  const void* x;  // [m][k]
  Element in;     // f32, f16 or bf16
  int64_t m;
  Activation how;
  Code code;  // fixed only, as are the rest
  float scale;
  int32_t zero, qmin, qmax;
};

// epilogue.row_scale and zero points are computed here. Stops at the first rows with NaN, Inf or too wide a range;
// `out` is then undefined.
DynamicResult linear(const Activations& a, const PackedMatrix& b, const Epilogue& epilogue, void* out);
DynamicResult linear(const Activations& a, const PackedGroups& b, const FloatEpilogue& epilogue, void* out);  // s8 only

int64_t linear_workspace(int64_t m, int64_t k);  // bytes of staged codes and scales

}  // namespace lowbit
