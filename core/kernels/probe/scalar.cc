#include "simd/scalar.h"

#include "kernels/probe/generic.h"

namespace lowbit {
extern const ProbeRow* const probe_rows_scalar;
const ProbeRow* const probe_rows_scalar = ProbeRows<Scalar>::rows;
}  // namespace lowbit
