#include "kernels/cholesky/generic.h"
#include "simd/isa.h"

namespace lowbit {
constinit const KernelTable<CholeskyRow> LOWBIT_ROWS(cholesky) = CholeskyRows<Vector>::rows;
}  // namespace lowbit
