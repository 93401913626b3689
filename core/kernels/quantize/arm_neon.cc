#include "kernels/quantize/generic.h"
#include "simd/arm_vec128.h"

namespace lowbit {
constinit const KernelTable<QuantizeRow> quantize_rows_neon = QuantizeRows<Neon>::rows;
}  // namespace lowbit
