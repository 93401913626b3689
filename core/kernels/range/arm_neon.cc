#include "kernels/range/generic.h"
#include "simd/arm_vec128.h"

namespace lowbit {
extern const RangeRow* const range_rows_neon;
const RangeRow* const range_rows_neon = RangeRows<Neon>::rows;
}  // namespace lowbit
