#include "kernels/finish/generic.h"
#include "simd/x86_vec512.h"

namespace lowbit {
extern const FinishRow* const finish_rows_avx512;
const FinishRow* const finish_rows_avx512 = FinishTable<Avx512>::rows;
}  // namespace lowbit
