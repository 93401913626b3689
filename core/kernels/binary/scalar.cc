#include "kernels/binary/bytes_scalar.h"
#include "kernels/binary/generic.h"

namespace lowbit {
extern const BinaryRow* const binary_rows_scalar;
const BinaryRow* const binary_rows_scalar = BinaryRows<ScalarBits>::rows;
}  // namespace lowbit
