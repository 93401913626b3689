#include "kernels/dwconv/generic.h"
#include "kernels/dwconv/taps_avx512.h"

namespace lowbit {
constinit const KernelTable<DwconvRow> dwconv_rows_avx512 = DwconvRows<Avx512>::rows;
}  // namespace lowbit
