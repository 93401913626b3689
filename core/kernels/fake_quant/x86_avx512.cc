#include "kernels/fake_quant/rows.h"
#include "simd/x86_vec512.h"

namespace lowbit {
constinit const KernelTable<FakeQuantRow> fake_quant_rows_avx512 = FakeQuantRows<Avx512>::rows;
}  // namespace lowbit
