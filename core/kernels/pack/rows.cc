#include "kernels/pack/generic.h"
#include "simd/isa.h"

namespace lowbit {
constinit const KernelTable<PackRow> LOWBIT_ROWS(pack) = PackRows<Vector>::rows;
}  // namespace lowbit
