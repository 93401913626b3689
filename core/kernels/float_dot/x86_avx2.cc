#include "kernels/float_dot/generic.h"
#include "simd/x86_vec256.h"

namespace lowbit {
extern const FloatDotRow* const float_dot_rows_avx2;
const FloatDotRow* const float_dot_rows_avx2 = FloatDotTable<Avx2, 3>::rows;
}  // namespace lowbit
