#include "kernels/gemm_float/generic.h"
#include "simd/x86_vec512.h"

namespace lowbit {
constinit const KernelTable<GemmFloatRow> gemm_float_rows_avx512 = GemmFloatRows<Avx512, 3>::rows;
}  // namespace lowbit
