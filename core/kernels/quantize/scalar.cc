#include "simd/scalar.h"

#include "kernels/quantize/generic.h"

namespace lowbit {
extern const QuantizeRow* const quantize_rows_scalar;
const QuantizeRow* const quantize_rows_scalar = QuantizeRows<Scalar>::rows;
}  // namespace lowbit
