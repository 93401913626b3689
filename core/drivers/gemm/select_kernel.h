// Some ISAs have faster micro-kernels for small codes: see gemm_rows and PackedMatrix::kernel.
#pragma once
#include "drivers/gemm/gemm.h"

namespace lowbit {

// The fastest micro-kernel that is exact for these codes. Reads the codes of a where that may find a faster one.
const GemmRow& select_kernel(const CodeRows& a, const PackedMatrix& b);

}  // namespace lowbit
