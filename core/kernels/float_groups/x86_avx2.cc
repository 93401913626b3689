#include "kernels/float_groups/generic.h"
#include "simd/x86_vec256.h"

namespace lowbit {
extern const FloatGroupRow* const float_group_rows_avx2;
const FloatGroupRow* const float_group_rows_avx2 = FloatGroupTable<Avx2, 4>::rows;
}  // namespace lowbit
