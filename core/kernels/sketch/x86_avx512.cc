#include "kernels/sketch/generic.h"
#include "simd/x86_vec512.h"

namespace lowbit {
extern const SketchRow* const sketch_rows_avx512;
const SketchRow* const sketch_rows_avx512 = SketchRows<Avx512>::rows;
}  // namespace lowbit
