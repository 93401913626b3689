#include "kernels/binary/bytes_avx512.h"
#include "kernels/binary/generic.h"

namespace lowbit {
extern const BinaryRow* const binary_rows_vpopcnt;
const BinaryRow* const binary_rows_vpopcnt = BinaryRows<VpopcntBits>::rows;
}  // namespace lowbit
