// Dense storage of sub-byte codes: 8 / bits of them a byte, the first in the low bits, padding bits 0.
// pack takes codes one a byte and looks at their low bits only; unpack sign-extends where asked.
#pragma once
#include "base/arch.h"
#include "base/types.h"

namespace lowbit {

struct PackRow {
  int bits;  // 4, 2 or 1
  // codes[n] is used as scratch. stream: write past the caches where the ISA and the alignment allow.
  void (*pack)(uint8_t* codes, int64_t n, uint8_t* bytes, bool stream);
  void (*unpack)(const uint8_t* bytes, int64_t n, uint8_t* codes, bool is_signed);
};

constexpr int kPackRows = 3;
const PackRow* pack_rows(Isa isa);
const PackRow& pack_row(Isa isa, int bits);

}  // namespace lowbit
