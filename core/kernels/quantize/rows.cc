#include "kernels/quantize/generic.h"
#include "simd/isa.h"

namespace lowbit {
constinit const KernelTable<QuantizeRow> LOWBIT_ROWS(quantize) = QuantizeRows<Vector>::rows;
}  // namespace lowbit
