#include "kernels/dwconv/generic.h"
#include "kernels/dwconv/taps_scalar.h"

namespace lowbit {
constinit const KernelTable<DwconvRow> dwconv_rows_scalar = DwconvRows<Scalar>::rows;
}  // namespace lowbit
