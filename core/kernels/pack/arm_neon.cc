#include "kernels/pack/generic.h"
#include "simd/arm_vec128.h"

namespace lowbit {
extern const PackRow* const pack_rows_neon;
const PackRow* const pack_rows_neon = PackRows<Neon>::rows;
}  // namespace lowbit
