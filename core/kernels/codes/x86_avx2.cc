#include "kernels/codes/generic.h"
#include "simd/x86_bytes256.h"

namespace lowbit {
extern const CodesRow* const codes_rows_avx2;
const CodesRow* const codes_rows_avx2 = CodesRows<Avx2, Avx2Bytes>::rows;
}  // namespace lowbit
