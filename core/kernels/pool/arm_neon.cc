#include "kernels/pool/generic.h"
#include "simd/arm_bytes128.h"

namespace lowbit {
constinit const KernelTable<PoolRow> pool_rows_neon = PoolRows<Neon, NeonBytes>::rows;
}  // namespace lowbit
