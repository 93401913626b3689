#include "kernels/gemm_float/generic.h"
#include "simd/x86_vec256.h"

namespace lowbit {
constinit const KernelTable<GemmFloatRow> gemm_float_rows_avx2 = GemmFloatRows<Avx2, 3>::rows;
}  // namespace lowbit
