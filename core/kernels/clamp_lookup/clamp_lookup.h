// 8-bit codes to 8-bit codes, without arithmetic:
//   clamp   q = min(max(x, lo), hi), in the order of the code's type
//   lookup  q = table[x], x and the table's index as bytes
#pragma once
#include "base/types.h"
#include "kernels/families.h"

namespace lowbit {

struct ClampLookupArgs {
  const uint8_t* x;
  uint8_t* q;  // may be x
  int64_t n;
  uint8_t lo, hi;        // clamp only: the bytes of two codes
  const uint8_t* table;  // lookup only: 256
};

using ClampLookupFn = void (*)(const ClampLookupArgs&);

struct ClampLookupRow {
  Code code;
  ClampLookupFn clamp;
  ClampLookupFn lookup;
};

const ClampLookupRow& clamp_lookup_row(Isa isa, Code code);

}  // namespace lowbit
