#include "kernels/epilogue/generic.h"
#include "simd/arm_vec128.h"

namespace lowbit {
constinit const KernelTable<EpilogueRow> epilogue_rows_neon = EpilogueRows<Neon>::rows;
}  // namespace lowbit
