#include "kernels/pool/generic.h"
#include "simd/isa.h"

namespace lowbit {
constinit const KernelTable<PoolRow> LOWBIT_ROWS(pool) = PoolRows<Vector, ByteVector>::rows;
}  // namespace lowbit
