#include "simd/scalar.h"

#include "kernels/codes/generic.h"

namespace lowbit {
extern const CodesRow* const codes_rows_scalar;
const CodesRow* const codes_rows_scalar = CodesRows<Scalar, ScalarBytes>::rows;
}  // namespace lowbit
