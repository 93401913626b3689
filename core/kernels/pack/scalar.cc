#include "kernels/pack/generic.h"
#include "simd/scalar.h"

namespace lowbit {
extern const PackRow* const pack_rows_scalar;
const PackRow* const pack_rows_scalar = PackRows<Scalar>::rows;
}  // namespace lowbit
