#include "kernels/probe/generic.h"
#include "simd/arm_vec128.h"

namespace lowbit {
extern const ProbeRow* const probe_rows_neon;
const ProbeRow* const probe_rows_neon = ProbeRows<Neon>::rows;
}  // namespace lowbit
