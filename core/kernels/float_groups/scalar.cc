#include "simd/scalar.h"

#include "kernels/float_groups/generic.h"

namespace lowbit {
extern const FloatGroupRow* const float_group_rows_scalar;
const FloatGroupRow* const float_group_rows_scalar = FloatGroupTable<Scalar, 2>::rows;
}  // namespace lowbit
