// q = quantize(va + vb) or quantize(va * vb), va = (a - za) * sa, vb = (b - zb) * sb, each step rounded to f32.
//
// `exact` computes just that. `shortcut` computes a cheaper formula: with a, b and q as s8 (u8 less 128)
//   add   q = clamp((a * A + b * B + offset + half) >> k)       integers of up to 28 bits in digits of 7, 16-bit lanes
//   mul   q = clamp(rne(((a - za) * (b - zb)) * ratio + shift))  f32, one rounding
// or, where look-ups are quick, of numbers a = I + f and b = J + g with fractions f and g
//   add   q = clamp(I[a] + J[b] + carry), carry: f + g >= 1, which is to say that g's place among all that b can be,
//         the greatest first, is below the number of those that carry with f: place[b] < count[a]
// Two codes have 65,536 pairs: whoever chooses a shortcut runs it on all of them first
// (drivers/elementwise/shortcut.h).
#pragma once
#include "base/arch.h"
#include "base/types.h"

namespace lowbit {

enum class CombineOp : int { add = 0, mul = 1 };

struct CombineShortcut {
  static constexpr int kDigit = 7;           // bits
  static constexpr int kPlanes = 4;          // digits at most
  static constexpr int kOffsets = 3;         // of the highest digits, that an offset is added to
  int planes = 0;                            // digits in use; 0: no shortcut
  int fraction = 0;                          // bits below the point in the first plane, 1 to 8
  uint8_t a[kPlanes] = {}, b[kPlanes] = {};  // the digits of A and B, highest first
  int16_t offset[kOffsets] = {};             // in units of plane 0, and what is left in units of those below
  float ratio = 0, shift = 0;                // mul only
  bool by_table = false;                     // add only: in place of planes
  uint8_t whole_a[256], count[256], whole_b[256], place[256];

  bool exists() const { return planes > 0 || by_table; }
};

struct CombineArgs {
  const void *a, *b;
  void* q;  // may be a or b
  int64_t n;
  bool a_signed, b_signed;  // s8, else u8
  float sa, sb, sy;
  int32_t za, zb, zy, qmin, qmax;
  bool stream;                      // write past the caches
  const CombineShortcut* shortcut;  // `shortcut` only
};

using CombineFn = void (*)(const CombineArgs&);

struct CombineRow {
  CombineOp op;
  Code code;  // of q
  CombineFn exact;
  CombineFn shortcut;  // null where the ISA has none
  bool has_tables;     // whether a shortcut may be by_table
};

constexpr int kCombineRows = 4;
const CombineRow* combine_rows(Isa isa);
const CombineRow* combine_rows_with_vbmi();  // those of avx512 with it; null where this CPU has no vpermb
const CombineRow& combine_row(Isa isa, CombineOp op, Code code);

}  // namespace lowbit
