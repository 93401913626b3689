#include "simd/scalar.h"

#include "kernels/gemm_float_groupwise/generic.h"

namespace lowbit {
constinit const KernelTable<FloatGroupwiseRow> gemm_float_groupwise_rows_scalar = FloatGroupwiseRows<Scalar, 2>::rows;
}  // namespace lowbit
