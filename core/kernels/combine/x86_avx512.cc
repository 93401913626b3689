#include "kernels/combine/generic.h"
#include "simd/x86_bytes512.h"

namespace lowbit {
extern const CombineRow* const combine_rows_avx512;
const CombineRow* const combine_rows_avx512 = CombineRows<Avx512, Avx512Bytes>::rows;
}  // namespace lowbit
