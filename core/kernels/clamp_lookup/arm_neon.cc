#include "kernels/clamp_lookup/generic.h"
#include "simd/arm_bytes128.h"

namespace lowbit {
constinit const KernelTable<ClampLookupRow> clamp_lookup_rows_neon = ClampLookupRows<Neon, NeonBytes>::rows;
}  // namespace lowbit
