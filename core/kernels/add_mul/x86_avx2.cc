#include "kernels/add_mul/generic.h"
#include "simd/x86_bytes256.h"

namespace lowbit {
constinit const KernelTable<AddMulRow> add_mul_rows_avx2 = AddMulRows<Avx2, Avx2Bytes>::rows;
}  // namespace lowbit
