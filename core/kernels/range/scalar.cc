#include "simd/scalar.h"

#include "kernels/range/generic.h"

namespace lowbit {
extern const RangeRow* const range_rows_scalar;
const RangeRow* const range_rows_scalar = RangeRows<Scalar>::rows;
}  // namespace lowbit
