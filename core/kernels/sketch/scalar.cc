#include "simd/scalar.h"

#include "kernels/sketch/generic.h"

namespace lowbit {
constinit const KernelTable<SketchRow> sketch_rows_scalar = SketchRows<Scalar>::rows;
}  // namespace lowbit
