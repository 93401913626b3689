// What a GEMM or a convolution does with its accumulators, as plans hold it.
#pragma once
#include <optional>

#include "bindings/arrays.h"
#include "bindings/codes.h"
#include "drivers/gemm/gemm.h"
#include "drivers/gemm/groups.h"

namespace lowbit {

struct EpilogueSpec {
  Result result = Result::s32;
  bool wide = false;  // sums are int64
  std::optional<Array<const float>> scale = {}, row_scale = {}, bias = {};
  std::optional<Array<const int32_t>> add = {};
  float floor = 0, ceiling = 0;
  CodeParams codes = {Code::s8, 1.0f, 0, 0, 0};

  // Bytes of a result's element, for sums over k products.
  int64_t item(int64_t k) const { return result == Result::s32 && (wide || k > kExactK) ? 8 : result_bytes(result); }
  // For m rows of n columns.
  Epilogue epilogue(int64_t m, int64_t n) const;
  // The part that follows sums of floats: bias and clamp.
  FloatEpilogue float_epilogue(int64_t n) const;
};

}  // namespace lowbit
