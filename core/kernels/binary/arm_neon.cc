#include "kernels/binary/bytes_neon.h"
#include "kernels/binary/generic.h"

namespace lowbit {
extern const BinaryRow* const binary_rows_neon;
const BinaryRow* const binary_rows_neon = BinaryRows<NeonBits>::rows;
}  // namespace lowbit
