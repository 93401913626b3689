#include "kernels/quantize/generic.h"
#include "simd/arm_vec128.h"

namespace lowbit {
extern const QuantizeRow* const quantize_rows_neon;
const QuantizeRow* const quantize_rows_neon = QuantizeRows<Neon>::rows;
}  // namespace lowbit
