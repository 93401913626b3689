#include "kernels/dwconv/generic.h"
#include "kernels/dwconv/taps_neon.h"

namespace lowbit {
constinit const KernelTable<DwconvRow> dwconv_rows_neon = DwconvRows<Neon>::rows;
}  // namespace lowbit
