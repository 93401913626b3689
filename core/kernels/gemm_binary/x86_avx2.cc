#include "kernels/gemm_binary/bytes_avx2.h"
#include "kernels/gemm_binary/generic.h"

namespace lowbit {
constinit const KernelTable<BinaryRow> gemm_binary_rows_avx2 = BinaryRows<Avx2Bits>::rows;
}  // namespace lowbit
