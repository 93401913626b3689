// Linear layers on float activations: quantized on the way, a bounded number of rows at a time, or with weights alone
// quantized:
//
//   y[m][n] = clamp(bias[n] + sum over k of x[m][k] * w[n][k], floor, ceiling)    w as dequantize gives it in f32
//
// There weights stay packed in memory; a few columns at a time are dequantized into scratch that stays in L1 or L2.
// k-blocks of 4096 elements are accumulated in order, each as kernels/gemm_float says, into an f64 total that begins
// with the bias and is narrowed once. The result depends neither on the number of threads nor on m.
#pragma once
#include <memory>

#include "base/types.h"
#include "drivers/elementwise/elementwise.h"
#include "drivers/gemm/groups.h"

namespace lowbit {

// Activations, and how they are quantized: a scale per row, from the row's range, or one given scale.
struct Activations {
  const void* x;  // [m][k]
  Element in;     // f32, f16 or bf16
  int64_t m;
  Code code;  // s8 (symmetric unless fixed) or u8
  bool fixed;
  float scale;  // fixed only, as are the rest
  int32_t zero, qmin, qmax;
};

// epilogue.row_scale and zero points are computed here. Stops at the first rows with NaN, Inf or too wide a range;
// `out` is then undefined.
DynamicResult linear(const Activations& a, const PackedMatrix& b, const Epilogue& epilogue, void* out);
DynamicResult linear(const Activations& a, const PackedGroups& b, const Epilogue& epilogue, void* out);  // s8 only

int64_t linear_workspace(int64_t m, int64_t k);  // bytes of staged codes and scales

// Sizes of weights, and which of them share a scale: all of them (tensor), a row (channel) or a block of k (group).
struct WeightLayout {
  int64_t n, k;
  GranularityKind kind;
  int64_t block;

  Granularity row() const {
    if (kind == GranularityKind::group) return {GranularityKind::group, 1, k, 1, block};
    return {GranularityKind::tensor, 1, 1, k, 1};
  }
  int64_t row_scales() const { return kind == GranularityKind::tensor ? 0 : row().scales(); }  // 0: one for all
  int64_t scales() const { return kind == GranularityKind::tensor ? 1 : n * row_scales(); }
};

// Weights. The arrays must outlive this object.
struct WeightOnly : WeightLayout {
  Code code;
  const void* codes;                             // [n][row_bytes()]
  const float* scale;                            // [scales()]
  const int32_t* zero;                           // likewise, or null: all 0
  std::unique_ptr<const LogTable<float>> table;  // null unless codes are logarithmic

  int64_t row_bytes() const { return packed_bytes(code, k); }
};

// out: [m][n].
void float_matmul(const FloatInput& input, const WeightOnly& weights, const Epilogue& output, void* out);
int64_t weight_only_workspace(int64_t m, int64_t k);  // bytes, for any number of threads

}  // namespace lowbit
