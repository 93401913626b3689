#include "kernels/epilogue/generic.h"
#include "simd/isa.h"

namespace lowbit {
constinit const KernelTable<EpilogueRow> LOWBIT_ROWS(epilogue) = EpilogueRows<Vector>::rows;
}  // namespace lowbit
