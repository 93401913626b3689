#include "kernels/dequantize/generic.h"
#include "simd/x86_vec256.h"

namespace lowbit {
constinit const KernelTable<DequantizeRow> dequantize_rows_avx2 = DequantizeRows<Avx2>::rows;
}  // namespace lowbit
