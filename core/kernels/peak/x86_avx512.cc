#include "kernels/peak/generic.h"
#include "simd/x86_vec512.h"

namespace lowbit {
constinit const KernelTable<PeakRow> peak_rows_avx512 = PeakRows<Avx512>::rows;
}  // namespace lowbit
