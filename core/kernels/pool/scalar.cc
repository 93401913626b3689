#include "simd/scalar.h"

#include "kernels/pool/generic.h"

namespace lowbit {
constinit const KernelTable<PoolRow> pool_rows_scalar = PoolRows<Scalar, ScalarBytes>::rows;
}  // namespace lowbit
