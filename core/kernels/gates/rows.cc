#include "kernels/gates/generic.h"
#include "simd/isa.h"

namespace lowbit {
constinit const KernelTable<GatesRow> LOWBIT_ROWS(gates) = GatesRows<Vector>::rows;
}  // namespace lowbit
