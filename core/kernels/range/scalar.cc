#include "simd/scalar.h"

#include "kernels/range/generic.h"

namespace lowbit {
constinit const KernelTable<RangeRow> range_rows_scalar = RangeRows<Scalar>::rows;
}  // namespace lowbit
