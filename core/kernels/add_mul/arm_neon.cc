#include "kernels/add_mul/generic.h"
#include "simd/arm_bytes128.h"

namespace lowbit {
constinit const KernelTable<AddMulRow> add_mul_rows_neon = AddMulRows<Neon, NeonBytes>::rows;
}  // namespace lowbit
