#include "kernels/dwconv/generic.h"
#include "kernels/dwconv/taps_neon.h"

namespace lowbit {
extern const DwconvRow* const dwconv_rows_neon;
const DwconvRow* const dwconv_rows_neon = DwconvRows<Neon>::rows;
}  // namespace lowbit
