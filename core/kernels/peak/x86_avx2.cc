#include "kernels/peak/generic.h"
#include "simd/x86_vec256.h"

namespace lowbit {
constinit const KernelTable<PeakRow> peak_rows_avx2 = PeakRows<Avx2>::rows;
}  // namespace lowbit
