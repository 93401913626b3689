#include "kernels/float_groups/generic.h"
#include "simd/x86_vec512.h"

namespace lowbit {
extern const FloatGroupRow* const float_group_rows_avx512;
const FloatGroupRow* const float_group_rows_avx512 = FloatGroupTable<Avx512, 8>::rows;
}  // namespace lowbit
