#include "kernels/gemm_float_groupwise/generic.h"
#include "simd/x86_vec512.h"

namespace lowbit {
constinit const KernelTable<FloatGroupwiseRow> gemm_float_groupwise_rows_avx512 = FloatGroupwiseRows<Avx512, 8>::rows;
}  // namespace lowbit
