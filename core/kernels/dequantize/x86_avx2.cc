#include "kernels/dequantize/generic.h"
#include "simd/x86_vec256.h"

namespace lowbit {
extern const DequantizeRow* const dequantize_rows_avx2;
const DequantizeRow* const dequantize_rows_avx2 = DequantizeRows<Avx2>::rows;
}  // namespace lowbit
