#include "kernels/range/generic.h"
#include "simd/x86_vec256.h"

namespace lowbit {
extern const RangeRow* const range_rows_avx2;
const RangeRow* const range_rows_avx2 = RangeRows<Avx2>::rows;
}  // namespace lowbit
