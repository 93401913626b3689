#include "simd/scalar.h"

#include "kernels/peak/generic.h"

namespace lowbit {
constinit const KernelTable<PeakRow> peak_rows_scalar = PeakRows<Scalar>::rows;
}  // namespace lowbit
