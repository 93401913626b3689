#include "kernels/fake_quant/rows.h"
#include "simd/x86_vec256.h"

namespace lowbit {
constinit const KernelTable<FakeQuantRow> fake_quant_rows_avx2 = FakeQuantRows<Avx2>::rows;
}  // namespace lowbit
