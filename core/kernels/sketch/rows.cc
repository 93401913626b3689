#include "kernels/sketch/generic.h"
#include "simd/isa.h"

namespace lowbit {
constinit const KernelTable<SketchRow> LOWBIT_ROWS(sketch) = SketchRows<Vector>::rows;
}  // namespace lowbit
