#include "kernels/combine/generic.h"
#include "simd/arm_bytes128.h"

namespace lowbit {
extern const CombineRow* const combine_rows_neon;
const CombineRow* const combine_rows_neon = CombineRows<Neon, NeonBytes>::rows;
}  // namespace lowbit
