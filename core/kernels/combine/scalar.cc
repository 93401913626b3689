#include "simd/scalar.h"

#include "kernels/combine/generic.h"

namespace lowbit {
extern const CombineRow* const combine_rows_scalar;
const CombineRow* const combine_rows_scalar = CombineRows<Scalar, ScalarBytes>::rows;
}  // namespace lowbit
