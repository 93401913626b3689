#include "kernels/pack/generic.h"
#include "simd/x86_vec256.h"

namespace lowbit {
constinit const KernelTable<PackRow> pack_rows_avx2 = PackRows<Avx2>::rows;
}  // namespace lowbit
