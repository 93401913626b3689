#include "kernels/gemm_float_groupwise/generic.h"
#include "simd/arm_vec128.h"

namespace lowbit {
constinit const KernelTable<FloatGroupwiseRow> gemm_float_groupwise_rows_neon = FloatGroupwiseRows<Neon, 8>::rows;
}  // namespace lowbit
