#include "simd/scalar.h"

#include "kernels/fake_quant/rows.h"

namespace lowbit {
extern const FakeQuantRow* const fake_quant_rows_scalar;
const FakeQuantRow* const fake_quant_rows_scalar = FakeQuantRows<Scalar>::rows;
}  // namespace lowbit
