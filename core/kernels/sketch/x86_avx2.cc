#include "kernels/sketch/generic.h"
#include "simd/x86_vec256.h"

namespace lowbit {
constinit const KernelTable<SketchRow> sketch_rows_avx2 = SketchRows<Avx2>::rows;
}  // namespace lowbit
