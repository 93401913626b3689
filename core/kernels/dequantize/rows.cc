#include "kernels/dequantize/generic.h"
#include "simd/isa.h"

namespace lowbit {
constinit const KernelTable<DequantizeRow> LOWBIT_ROWS(dequantize) = DequantizeRows<Vector>::rows;
}  // namespace lowbit
