#include "kernels/quantize/generic.h"
#include "simd/x86_vec256.h"

namespace lowbit {
extern const QuantizeRow* const quantize_rows_avx2;
const QuantizeRow* const quantize_rows_avx2 = QuantizeRows<Avx2>::rows;
}  // namespace lowbit
