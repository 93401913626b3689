#include "simd/scalar.h"

#include "kernels/dequantize/generic.h"

namespace lowbit {
constinit const KernelTable<DequantizeRow> dequantize_rows_scalar = DequantizeRows<Scalar>::rows;
}  // namespace lowbit
