#include "kernels/add_mul/generic.h"
#include "simd/isa.h"

namespace lowbit {
constinit const KernelTable<AddMulRow> LOWBIT_ROWS(add_mul) = AddMulRows<Vector, ByteVector>::rows;
}  // namespace lowbit
