#include "kernels/fake_quant/rows.h"
#include "simd/arm_vec128.h"

namespace lowbit {
constinit const KernelTable<FakeQuantRow> fake_quant_rows_neon = FakeQuantRows<Neon>::rows;
}  // namespace lowbit
