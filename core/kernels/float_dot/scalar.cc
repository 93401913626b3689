#include "simd/scalar.h"

#include "kernels/float_dot/generic.h"

namespace lowbit {
extern const FloatDotRow* const float_dot_rows_scalar;
const FloatDotRow* const float_dot_rows_scalar = FloatDotTable<Scalar, 3>::rows;
}  // namespace lowbit
