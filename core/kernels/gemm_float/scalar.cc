#include "simd/scalar.h"

#include "kernels/gemm_float/generic.h"

namespace lowbit {
constinit const KernelTable<GemmFloatRow> gemm_float_rows_scalar = GemmFloatRows<Scalar, 3>::rows;
}  // namespace lowbit
