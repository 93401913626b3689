#include "simd/scalar.h"

#include "kernels/dequantize/generic.h"

namespace lowbit {
extern const DequantizeRow* const dequantize_rows_scalar;
const DequantizeRow* const dequantize_rows_scalar = DequantizeRows<Scalar>::rows;
}  // namespace lowbit
