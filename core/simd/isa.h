// The vectors of the instruction set that a file is compiled for, and the name of its table: CMakeLists.txt compiles
// core/kernels/<family>/rows.cc once for each.
#pragma once

#if defined(LOWBIT_ISA_avx512)
#include "simd/x86_bytes512.h"
#define LOWBIT_ROWS(family) family##_rows_avx512
namespace lowbit {
using Vector = Avx512;
using ByteVector = Avx512Bytes;
}  // namespace lowbit
#elif defined(LOWBIT_ISA_avx2)
#include "simd/x86_bytes256.h"
#define LOWBIT_ROWS(family) family##_rows_avx2
namespace lowbit {
using Vector = Avx2;
using ByteVector = Avx2Bytes;
}  // namespace lowbit
#elif defined(LOWBIT_ISA_neon)
#include "simd/arm_bytes128.h"
#define LOWBIT_ROWS(family) family##_rows_neon
namespace lowbit {
using Vector = Neon;
using ByteVector = NeonBytes;
}  // namespace lowbit
#else
#include "simd/bytes.h"
#include "simd/scalar.h"
#define LOWBIT_ROWS(family) family##_rows_scalar
namespace lowbit {
using Vector = Scalar;
using ByteVector = ScalarBytes;
}  // namespace lowbit
#endif
