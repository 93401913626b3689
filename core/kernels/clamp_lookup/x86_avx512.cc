#include "kernels/clamp_lookup/generic.h"
#include "simd/x86_bytes512.h"

namespace lowbit {
constinit const KernelTable<ClampLookupRow> clamp_lookup_rows_avx512 = ClampLookupRows<Avx512, Avx512Bytes>::rows;
}  // namespace lowbit
