// What a GEMM or a convolution does with its accumulators, as plans hold it.
#pragma once
#include <optional>

#include "bindings/sizes.h"
#include "drivers/gemm/gemm.h"

namespace lowbit {

using Floats = std::optional<Array<const float>>;
using Integers = std::optional<Array<const int32_t>>;

// An epilogue for any sizes, and the arrays it refers to.
struct EpilogueSpec : Epilogue {
  Floats scales, row_scales, biases;
  Integers adds;

  EpilogueSpec(Result of, Floats s, Floats rows, Floats b, Integers a)
      : Epilogue{.result = of, .add = data_of(a), .scale = data_of(s), .row_scale = data_of(rows), .bias = data_of(b)},
        scales(std::move(s)),
        row_scales(std::move(rows)),
        biases(std::move(b)),
        adds(std::move(a)) {}

  // Bytes of a result's element, for sums over k products.
  int64_t item(int64_t k) const { return result == Result::s32 && (wide || k > kExactK) ? 8 : result_bytes(result); }
  // For m rows of n columns.
  Epilogue epilogue(int64_t m, int64_t n) const;
  // For n columns of floats, where bias and clamp are all that applies.
  Epilogue float_epilogue(int64_t n) const;
};

}  // namespace lowbit
