#include "kernels/pool/generic.h"
#include "simd/arm_bytes128.h"

namespace lowbit {
extern const PoolRow* const pool_rows_neon;
const PoolRow* const pool_rows_neon = PoolRows<Neon, NeonBytes>::rows;
}  // namespace lowbit
