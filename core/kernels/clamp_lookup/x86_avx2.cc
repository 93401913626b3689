#include "kernels/clamp_lookup/generic.h"
#include "simd/x86_bytes256.h"

namespace lowbit {
constinit const KernelTable<ClampLookupRow> clamp_lookup_rows_avx2 = ClampLookupRows<Avx2, Avx2Bytes>::rows;
}  // namespace lowbit
