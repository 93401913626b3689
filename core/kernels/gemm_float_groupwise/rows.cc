#include "kernels/gemm_float_groupwise/generic.h"
#include "simd/isa.h"

namespace lowbit {
constinit const KernelTable<FloatGroupwiseRow> LOWBIT_ROWS(gemm_float_groupwise) = FloatGroupwiseRows<Vector>::rows;
}  // namespace lowbit
