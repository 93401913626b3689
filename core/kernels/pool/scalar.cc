#include "simd/scalar.h"

#include "kernels/pool/generic.h"

namespace lowbit {
extern const PoolRow* const pool_rows_scalar;
const PoolRow* const pool_rows_scalar = PoolRows<Scalar, ScalarBytes>::rows;
}  // namespace lowbit
