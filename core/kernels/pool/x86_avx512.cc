#include "kernels/pool/generic.h"
#include "simd/x86_bytes512.h"

namespace lowbit {
constinit const KernelTable<PoolRow> pool_rows_avx512 = PoolRows<Avx512, Avx512Bytes>::rows;
}  // namespace lowbit
