#include "kernels/dequantize/generic.h"
#include "simd/arm_vec128.h"

namespace lowbit {
extern const DequantizeRow* const dequantize_rows_neon;
const DequantizeRow* const dequantize_rows_neon = DequantizeRows<Neon>::rows;
}  // namespace lowbit
