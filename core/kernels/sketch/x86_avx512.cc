#include "kernels/sketch/generic.h"
#include "simd/x86_vec512.h"

namespace lowbit {
constinit const KernelTable<SketchRow> sketch_rows_avx512 = SketchRows<Avx512>::rows;
}  // namespace lowbit
