#include "kernels/float_dot/generic.h"
#include "simd/x86_vec512.h"

namespace lowbit {
extern const FloatDotRow* const float_dot_rows_avx512;
const FloatDotRow* const float_dot_rows_avx512 = FloatDotTable<Avx512, 3>::rows;
}  // namespace lowbit
