#include "kernels/sketch/generic.h"
#include "simd/x86_vec256.h"

namespace lowbit {
extern const SketchRow* const sketch_rows_avx2;
const SketchRow* const sketch_rows_avx2 = SketchRows<Avx2>::rows;
}  // namespace lowbit
