#include "kernels/pack/generic.h"
#include "simd/x86_vec512.h"

namespace lowbit {
constinit const KernelTable<PackRow> pack_rows_avx512 = PackRows<Avx512>::rows;
}  // namespace lowbit
