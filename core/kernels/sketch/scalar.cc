#include "simd/scalar.h"

#include "kernels/sketch/generic.h"

namespace lowbit {
extern const SketchRow* const sketch_rows_scalar;
const SketchRow* const sketch_rows_scalar = SketchRows<Scalar>::rows;
}  // namespace lowbit
