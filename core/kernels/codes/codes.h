// Codes of a byte to codes of a byte, without arithmetic:
//   clamp   q = min(max(x, lo), hi), in the order of the code's type
//   lookup  q = table[x], x and the table's index as bytes
#pragma once
#include "base/arch.h"
#include "base/types.h"

namespace lowbit {

struct CodesArgs {
  const uint8_t* x;
  uint8_t* q;  // may be x
  int64_t n;
  uint8_t lo, hi;        // clamp only: the bytes of two codes
  const uint8_t* table;  // lookup only: 256
  bool stream;           // write past the caches
};

using CodesFn = void (*)(const CodesArgs&);

struct CodesRow {
  Code code;
  CodesFn clamp;
  CodesFn lookup;
};

constexpr int kCodesRows = 2;
const CodesRow* codes_rows(Isa isa);
const CodesRow& codes_row(Isa isa, Code code);

}  // namespace lowbit
