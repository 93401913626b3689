#include "kernels/add_mul/generic.h"
#include "simd/x86_bytes512.h"

namespace lowbit {
constinit const KernelTable<AddMulRow> add_mul_rows_vbmi = AddMulRows<Avx512Vbmi, Avx512VbmiBytes>::rows;
}  // namespace lowbit
