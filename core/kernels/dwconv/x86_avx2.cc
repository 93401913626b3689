#include "kernels/dwconv/x86_taps.h"
#include "simd/x86_vec256.h"

namespace lowbit {
template <>
struct Taps<Avx2> : X86Taps<Avx2> {};

constinit const KernelTable<DwconvRow> dwconv_rows_avx2 = DwconvRows<Avx2>::rows;
}  // namespace lowbit
