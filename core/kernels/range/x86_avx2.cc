#include "kernels/range/generic.h"
#include "simd/x86_vec256.h"

namespace lowbit {
constinit const KernelTable<RangeRow> range_rows_avx2 = RangeRows<Avx2>::rows;
}  // namespace lowbit
