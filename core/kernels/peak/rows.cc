#include "kernels/peak/generic.h"
#include "simd/isa.h"

namespace lowbit {
constinit const KernelTable<PeakRow> LOWBIT_ROWS(peak) = PeakRows<Vector>::rows;
}  // namespace lowbit
