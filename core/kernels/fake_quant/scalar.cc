#include "simd/scalar.h"

#include "kernels/fake_quant/rows.h"

namespace lowbit {
constinit const KernelTable<FakeQuantRow> fake_quant_rows_scalar = FakeQuantRows<Scalar>::rows;
}  // namespace lowbit
