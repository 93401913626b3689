#include "kernels/quantize/generic.h"
#include "simd/x86_vec512.h"

namespace lowbit {
constinit const KernelTable<QuantizeRow> quantize_rows_avx512 = QuantizeRows<Avx512>::rows;
}  // namespace lowbit
