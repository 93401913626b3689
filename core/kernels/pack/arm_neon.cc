#include "kernels/pack/generic.h"
#include "simd/arm_vec128.h"

namespace lowbit {
constinit const KernelTable<PackRow> pack_rows_neon = PackRows<Neon>::rows;
}  // namespace lowbit
