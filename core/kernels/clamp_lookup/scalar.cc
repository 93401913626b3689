#include "simd/scalar.h"

#include "kernels/clamp_lookup/generic.h"

namespace lowbit {
constinit const KernelTable<ClampLookupRow> clamp_lookup_rows_scalar = ClampLookupRows<Scalar, ScalarBytes>::rows;
}  // namespace lowbit
