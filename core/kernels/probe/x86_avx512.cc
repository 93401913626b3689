#include "kernels/probe/generic.h"
#include "simd/x86_vec512.h"

namespace lowbit {
extern const ProbeRow* const probe_rows_avx512;
const ProbeRow* const probe_rows_avx512 = ProbeRows<Avx512>::rows;
}  // namespace lowbit
