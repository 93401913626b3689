#include "kernels/range/generic.h"
#include "simd/x86_vec512.h"

namespace lowbit {
extern const RangeRow* const range_rows_avx512;
const RangeRow* const range_rows_avx512 = RangeRows<Avx512>::rows;
}  // namespace lowbit
