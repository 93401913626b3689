#include "kernels/fake_quant/rows.h"
#include "simd/x86_vec512.h"

namespace lowbit {
extern const FakeQuantRow* const fake_quant_rows_avx512;
const FakeQuantRow* const fake_quant_rows_avx512 = FakeQuantRows<Avx512>::rows;
}  // namespace lowbit
