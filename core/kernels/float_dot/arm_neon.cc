#include "kernels/float_dot/generic.h"
#include "simd/arm_vec128.h"

namespace lowbit {
extern const FloatDotRow* const float_dot_rows_neon;
const FloatDotRow* const float_dot_rows_neon = FloatDotTable<Neon, 6>::rows;
}  // namespace lowbit
