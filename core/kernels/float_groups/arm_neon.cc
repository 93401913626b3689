#include "kernels/float_groups/generic.h"
#include "simd/arm_vec128.h"

namespace lowbit {
extern const FloatGroupRow* const float_group_rows_neon;
const FloatGroupRow* const float_group_rows_neon = FloatGroupTable<Neon, 8>::rows;
}  // namespace lowbit
