#include "kernels/quantize/generic.h"
#include "simd/x86_vec256.h"

namespace lowbit {
constinit const KernelTable<QuantizeRow> quantize_rows_avx2 = QuantizeRows<Avx2>::rows;
}  // namespace lowbit
