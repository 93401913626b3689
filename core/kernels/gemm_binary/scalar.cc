#include "kernels/gemm_binary/bytes_scalar.h"
#include "kernels/gemm_binary/generic.h"

namespace lowbit {
constinit const KernelTable<BinaryRow> gemm_binary_rows_scalar = BinaryRows<ScalarBits>::rows;
}  // namespace lowbit
