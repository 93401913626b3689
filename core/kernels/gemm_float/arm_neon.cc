#include "kernels/gemm_float/generic.h"
#include "simd/arm_vec128.h"

namespace lowbit {
constinit const KernelTable<GemmFloatRow> gemm_float_rows_neon = GemmFloatRows<Neon, 6>::rows;
}  // namespace lowbit
