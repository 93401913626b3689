#include "kernels/codes/generic.h"
#include "simd/arm_bytes128.h"

namespace lowbit {
extern const CodesRow* const codes_rows_neon;
const CodesRow* const codes_rows_neon = CodesRows<Neon, NeonBytes>::rows;
}  // namespace lowbit
