#include "kernels/dwconv/x86_taps.h"
#include "simd/x86_vec512.h"

namespace lowbit {
template <>
struct Taps<Avx512> : X86Taps<Avx512> {};

constinit const KernelTable<DwconvRow> dwconv_rows_avx512 = DwconvRows<Avx512>::rows;
}  // namespace lowbit
