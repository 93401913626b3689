#include "kernels/pool/generic.h"
#include "simd/x86_bytes256.h"

namespace lowbit {
constinit const KernelTable<PoolRow> pool_rows_avx2 = PoolRows<Avx2, Avx2Bytes>::rows;
}  // namespace lowbit
