#include "kernels/range/generic.h"
#include "simd/scalar.h"

namespace lowbit {
extern const RangeRow* const range_rows_scalar;
const RangeRow* const range_rows_scalar = RangeRows<Scalar>::rows;
}  // namespace lowbit
