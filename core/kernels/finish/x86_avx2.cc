#include "kernels/finish/generic.h"
#include "simd/x86_vec256.h"

namespace lowbit {
extern const FinishRow* const finish_rows_avx2;
const FinishRow* const finish_rows_avx2 = FinishTable<Avx2>::rows;
}  // namespace lowbit
