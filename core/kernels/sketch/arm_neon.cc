#include "kernels/sketch/generic.h"
#include "simd/arm_vec128.h"

namespace lowbit {
constinit const KernelTable<SketchRow> sketch_rows_neon = SketchRows<Neon>::rows;
}  // namespace lowbit
