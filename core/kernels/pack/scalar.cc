#include "simd/scalar.h"

#include "kernels/pack/generic.h"

namespace lowbit {
extern const PackRow* const pack_rows_scalar;
const PackRow* const pack_rows_scalar = PackRows<Scalar>::rows;
}  // namespace lowbit
