#include "kernels/combine/generic.h"
#include "simd/x86_bytes256.h"

namespace lowbit {
extern const CombineRow* const combine_rows_avx2;
const CombineRow* const combine_rows_avx2 = CombineRows<Avx2, Avx2Bytes>::rows;
}  // namespace lowbit
