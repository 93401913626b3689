#include "kernels/gemm_float/generic.h"
#include "simd/isa.h"

namespace lowbit {
constinit const KernelTable<GemmFloatRow> LOWBIT_ROWS(gemm_float) = GemmFloatRows<Vector>::rows;
}  // namespace lowbit
