#include "kernels/dequantize/generic.h"
#include "simd/arm_vec128.h"

namespace lowbit {
constinit const KernelTable<DequantizeRow> dequantize_rows_neon = DequantizeRows<Neon>::rows;
}  // namespace lowbit
