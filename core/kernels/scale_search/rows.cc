#include "kernels/scale_search/generic.h"
#include "simd/isa.h"

namespace lowbit {
constinit const KernelTable<ScaleSearchRow> LOWBIT_ROWS(scale_search) = ScaleSearchRows<Vector>::rows;
}  // namespace lowbit
