#include "kernels/add_mul/generic.h"
#include "simd/x86_bytes512.h"

namespace lowbit {
constinit const KernelTable<AddMulRow> add_mul_rows_avx512 = AddMulRows<Avx512, Avx512Bytes>::rows;
}  // namespace lowbit
