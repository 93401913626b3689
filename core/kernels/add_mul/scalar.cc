#include "simd/scalar.h"

#include "kernels/add_mul/generic.h"

namespace lowbit {
constinit const KernelTable<AddMulRow> add_mul_rows_scalar = AddMulRows<Scalar, ScalarBytes>::rows;
}  // namespace lowbit
