#include "kernels/dequantize/generic.h"
#include "simd/x86_vec512.h"

namespace lowbit {
constinit const KernelTable<DequantizeRow> dequantize_rows_avx512 = DequantizeRows<Avx512>::rows;
}  // namespace lowbit
