#include "kernels/range/generic.h"
#include "simd/x86_vec512.h"

namespace lowbit {
constinit const KernelTable<RangeRow> range_rows_avx512 = RangeRows<Avx512>::rows;
}  // namespace lowbit
