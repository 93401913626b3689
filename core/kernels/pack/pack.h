// Dense storage of sub-byte codes: 8 / bits of them per byte, the first in the low bits, padding bits 0. pack takes one
// code per byte and uses its low bits; unpack sign-extends on request.
#pragma once
#include "base/types.h"
#include "kernels/families.h"

namespace lowbit {

struct PackRow {
  int bits;                                                 // 4, 2 or 1
  void (*pack)(uint8_t* codes, int64_t n, uint8_t* bytes);  // codes[n] is used as scratch
  void (*unpack)(const uint8_t* bytes, int64_t n, uint8_t* codes, bool is_signed);
};

const PackRow& pack_row(Isa isa, int bits);

}  // namespace lowbit
