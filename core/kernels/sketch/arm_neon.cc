#include "kernels/sketch/generic.h"
#include "simd/arm_vec128.h"

namespace lowbit {
extern const SketchRow* const sketch_rows_neon;
const SketchRow* const sketch_rows_neon = SketchRows<Neon>::rows;
}  // namespace lowbit
