#include "kernels/gemm_binary/bytes_vpopcnt.h"
#include "kernels/gemm_binary/generic.h"

namespace lowbit {
constinit const KernelTable<BinaryRow> gemm_binary_rows_vpopcnt = BinaryRows<VpopcntBits>::rows;
}  // namespace lowbit
