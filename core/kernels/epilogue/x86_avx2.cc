#include "kernels/epilogue/generic.h"
#include "simd/x86_vec256.h"

namespace lowbit {
constinit const KernelTable<EpilogueRow> epilogue_rows_avx2 = EpilogueRows<Avx2>::rows;
}  // namespace lowbit
