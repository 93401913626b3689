#include "kernels/finish/generic.h"
#include "simd/arm_vec128.h"

namespace lowbit {
extern const FinishRow* const finish_rows_neon;
const FinishRow* const finish_rows_neon = FinishTable<Neon>::rows;
}  // namespace lowbit
