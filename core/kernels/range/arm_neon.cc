#include "kernels/range/generic.h"
#include "simd/arm_vec128.h"

namespace lowbit {
constinit const KernelTable<RangeRow> range_rows_neon = RangeRows<Neon>::rows;
}  // namespace lowbit
