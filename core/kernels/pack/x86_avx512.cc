#include "kernels/pack/generic.h"
#include "simd/x86_vec512.h"

namespace lowbit {
extern const PackRow* const pack_rows_avx512;
const PackRow* const pack_rows_avx512 = PackRows<Avx512>::rows;
}  // namespace lowbit
