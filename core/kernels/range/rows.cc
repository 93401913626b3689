#include "kernels/range/generic.h"
#include "simd/isa.h"

namespace lowbit {
constinit const KernelTable<RangeRow> LOWBIT_ROWS(range) = RangeRows<Vector>::rows;
}  // namespace lowbit
