#include "kernels/dwconv/generic.h"
#include "kernels/dwconv/taps_scalar.h"

namespace lowbit {
extern const DwconvRow* const dwconv_rows_scalar;
const DwconvRow* const dwconv_rows_scalar = DwconvRows<Scalar>::rows;
}  // namespace lowbit
