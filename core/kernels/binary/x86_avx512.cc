#include "kernels/binary/bytes_avx512.h"
#include "kernels/binary/generic.h"

namespace lowbit {
extern const BinaryRow* const binary_rows_avx512;
const BinaryRow* const binary_rows_avx512 = BinaryRows<Avx512Bits>::rows;
}  // namespace lowbit
