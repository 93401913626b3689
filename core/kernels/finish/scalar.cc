#include "simd/scalar.h"

#include "kernels/finish/generic.h"

namespace lowbit {
extern const FinishRow* const finish_rows_scalar;
const FinishRow* const finish_rows_scalar = FinishTable<Scalar>::rows;
}  // namespace lowbit
