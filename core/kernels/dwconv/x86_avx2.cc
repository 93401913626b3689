#include "kernels/dwconv/generic.h"
#include "kernels/dwconv/taps_avx2.h"

namespace lowbit {
constinit const KernelTable<DwconvRow> dwconv_rows_avx2 = DwconvRows<Avx2>::rows;
}  // namespace lowbit
