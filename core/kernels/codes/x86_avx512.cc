#include "kernels/codes/generic.h"
#include "simd/x86_bytes512.h"

namespace lowbit {
extern const CodesRow* const codes_rows_avx512;
const CodesRow* const codes_rows_avx512 = CodesRows<Avx512, Avx512Bytes>::rows;
}  // namespace lowbit
