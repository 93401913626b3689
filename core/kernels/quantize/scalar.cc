#include "simd/scalar.h"

#include "kernels/quantize/generic.h"

namespace lowbit {
constinit const KernelTable<QuantizeRow> quantize_rows_scalar = QuantizeRows<Scalar>::rows;
}  // namespace lowbit
