#include "kernels/peak/generic.h"
#include "simd/arm_vec128.h"

namespace lowbit {
constinit const KernelTable<PeakRow> peak_rows_neon = PeakRows<Neon>::rows;
}  // namespace lowbit
