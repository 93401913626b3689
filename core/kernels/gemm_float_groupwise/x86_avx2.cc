#include "kernels/gemm_float_groupwise/generic.h"
#include "simd/x86_vec256.h"

namespace lowbit {
constinit const KernelTable<FloatGroupwiseRow> gemm_float_groupwise_rows_avx2 = FloatGroupwiseRows<Avx2, 4>::rows;
}  // namespace lowbit
