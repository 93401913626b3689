#include "kernels/clamp_lookup/generic.h"
#include "simd/isa.h"

namespace lowbit {
constinit const KernelTable<ClampLookupRow> LOWBIT_ROWS(clamp_lookup) = ClampLookupRows<ByteVector>::rows;
}  // namespace lowbit
