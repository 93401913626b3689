#include "simd/scalar.h"

#include "kernels/pack/generic.h"

namespace lowbit {
constinit const KernelTable<PackRow> pack_rows_scalar = PackRows<Scalar>::rows;
}  // namespace lowbit
