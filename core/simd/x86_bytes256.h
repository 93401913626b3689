// AVX2: 32 bytes.
#pragma once
#include "simd/x86_bytes.h"
#include "simd/x86_vec256.h"

namespace lowbit {
struct Avx2Bytes : X86Bytes<Avx2> {};
}  // namespace lowbit
