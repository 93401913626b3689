#include "simd/scalar.h"

#include "kernels/epilogue/generic.h"

namespace lowbit {
constinit const KernelTable<EpilogueRow> epilogue_rows_scalar = EpilogueRows<Scalar>::rows;
}  // namespace lowbit
