#include "kernels/binary/bytes_avx2.h"
#include "kernels/binary/generic.h"

namespace lowbit {
extern const BinaryRow* const binary_rows_avx2;
const BinaryRow* const binary_rows_avx2 = BinaryRows<Avx2Bits>::rows;
}  // namespace lowbit
