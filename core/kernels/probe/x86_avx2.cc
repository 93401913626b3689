#include "kernels/probe/generic.h"
#include "simd/x86_vec256.h"

namespace lowbit {
extern const ProbeRow* const probe_rows_avx2;
const ProbeRow* const probe_rows_avx2 = ProbeRows<Avx2>::rows;
}  // namespace lowbit
