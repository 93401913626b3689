// A linear layer on floats with quantized weights:
//
//   y[m][n] = clamp(bias[n] + sum over k of x[m][k] * w[n][k], floor, ceiling)    w as dequantize gives it in f32
//
// Weights stay packed in memory; a few columns at a time are dequantized into scratch that stays in L1 or L2. k-blocks
// of kBlockK elements are accumulated in order, each as kernels/gemm_float says, into an f64 total that begins with the
// bias and is narrowed once. The result depends neither on the number of threads nor on m.
#pragma once
#include <memory>

#include "base/granularity.h"
#include "base/types.h"
#include "drivers/gemm/groups.h"
#include "kernels/logarithm/logarithm.h"

namespace lowbit {

// Weights. The arrays must outlive this object.
class WeightOnly {
 public:
  static constexpr int64_t kBlockK = 4096;

  // codes: [n][row_bytes()]. scale: one (tensor), [n] (channel), or [n][ceil(k / block)] (group); zero likewise, or
  // null: all 0. table: null unless codes are logarithmic.
  WeightOnly(Code code, const void* codes, int64_t n, int64_t k, GranularityKind kind, int64_t block,
             const float* scale, const int32_t* zero, std::unique_ptr<const LogTable<float>> table);

  int64_t k() const { return k_; }
  int64_t n() const { return n_; }
  int64_t row_bytes() const { return packed_bytes(code_, k_); }
  int64_t scales() const { return kind_ == GranularityKind::tensor ? 1 : n_ * row_scales_; }

  void run(const FloatInput& input, const FloatEpilogue& output, void* out) const;  // out: [m][n]
  int64_t workspace(int64_t m) const { return workspace(m, k_); }
  static int64_t workspace(int64_t m, int64_t k);  // bytes, for any number of threads

 private:
  // Elements [begin, end) of row r, as f32.
  void expand(int64_t r, int64_t begin, int64_t end, float* to) const;
  // Prefetches their codes.
  void prefetch(int64_t r, int64_t begin, int64_t end) const;

  Code code_;
  const char* codes_;
  int64_t n_, k_;
  GranularityKind kind_;
  Granularity row_;
  int64_t row_scales_;  // 0: one for all
  const float* scale_;
  const int32_t* zero_;
  std::unique_ptr<const LogTable<float>> table_;
};

}  // namespace lowbit
