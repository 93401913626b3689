#include "kernels/epilogue/generic.h"
#include "simd/x86_vec512.h"

namespace lowbit {
constinit const KernelTable<EpilogueRow> epilogue_rows_avx512 = EpilogueRows<Avx512>::rows;
}  // namespace lowbit
