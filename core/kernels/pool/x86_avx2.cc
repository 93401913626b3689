#include "kernels/pool/generic.h"
#include "simd/x86_bytes256.h"

namespace lowbit {
extern const PoolRow* const pool_rows_avx2;
const PoolRow* const pool_rows_avx2 = PoolRows<Avx2, Avx2Bytes>::rows;
}  // namespace lowbit
