// Linear layers on floats with weights of 4 or 2 bits in groups:
//
//   y[m][n] = clamp(bias[n] + sum over k of x[m][k] * w[n][k], floor, ceiling)    as kernels/gemm_float_groupwise says
//
// The bias is added in f64, and the sum narrowed once. The result depends neither on the number of threads nor on m.
#pragma once
#include "drivers/gemm/groups.h"
#include "drivers/gemm/weight_only.h"

namespace lowbit {

void float_group_matmul(const FloatInput& input, const PackedGroups& b, const FloatEpilogue& epilogue, void* out);
int64_t float_group_workspace(const GroupSizes& b, int64_t m);  // bytes, for any number of threads

}  // namespace lowbit
