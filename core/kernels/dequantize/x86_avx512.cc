#include "kernels/dequantize/generic.h"
#include "simd/x86_vec512.h"

namespace lowbit {
extern const DequantizeRow* const dequantize_rows_avx512;
const DequantizeRow* const dequantize_rows_avx512 = DequantizeRows<Avx512>::rows;
}  // namespace lowbit
