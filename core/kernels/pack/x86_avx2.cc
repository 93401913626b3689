#include "kernels/pack/generic.h"
#include "simd/x86_vec256.h"

namespace lowbit {
extern const PackRow* const pack_rows_avx2;
const PackRow* const pack_rows_avx2 = PackRows<Avx2>::rows;
}  // namespace lowbit
