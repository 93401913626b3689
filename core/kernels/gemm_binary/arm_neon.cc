#include "kernels/gemm_binary/bytes_neon.h"
#include "kernels/gemm_binary/generic.h"

namespace lowbit {
constinit const KernelTable<BinaryRow> gemm_binary_rows_neon = BinaryRows<NeonBits>::rows;
}  // namespace lowbit
