#include "kernels/dwconv/generic.h"
#include "kernels/dwconv/taps_avx2.h"

namespace lowbit {
extern const DwconvRow* const dwconv_rows_avx2;
const DwconvRow* const dwconv_rows_avx2 = DwconvRows<Avx2>::rows;
}  // namespace lowbit
