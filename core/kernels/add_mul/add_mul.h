// q = quantize(va + vb) or quantize(va * vb), va = (a - za) * sa, vb = (b - zb) * sb, each step rounded to f32.
//
// `exact` computes this equation. `shortcut` computes a cheaper formula. With a, b and q as s8 (u8 minus 128):
//   add   q = clamp((a * A + b * B + offset + half) >> k)        integers of up to 28 bits in 7-bit digits, 16-bit
//   lanes mul   q = clamp(rne(((a - za) * (b - zb)) * ratio + shift))  f32, rounded once
// or, where lookups are fast, with a = I + f and b = J + g, f and g being fractions:
//   add   q = clamp(I[a] + J[b] + carry). There is a carry where f + g >= 1: where the rank of g among all b, from the
//         largest g, is below the number of b that carry with f: place[b] < count[a].
// A shortcut is used only after it gave the codes of `exact` for all 65,536 pairs of codes.
#pragma once
#include "base/types.h"
#include "kernels/families.h"

namespace lowbit {

enum class AddMulOp : int { add = 0, mul = 1 };

struct AddMulShortcut {
  static constexpr int kDigit = 7;           // bits
  static constexpr int kPlanes = 4;          // digits at most
  static constexpr int kOffsets = 3;         // the highest digits, which an offset is added to
  int planes = 0;                            // digits in use; 0: no shortcut
  int fraction = 0;                          // bits below the point in the first plane, 1 to 8
  uint8_t a[kPlanes] = {}, b[kPlanes] = {};  // the digits of A and B, highest first
  int16_t offset[kOffsets] = {};             // in units of plane 0; the remainder in units of the planes below
  float ratio = 0, shift = 0;                // mul only
  bool by_table = false;                     // add only: tables instead of planes
  uint8_t whole_a[256], count[256], whole_b[256], place[256];

  bool exists() const { return planes > 0 || by_table; }
};

struct AddMulArgs {
  const void *a, *b;
  void* q;  // may be a or b
  int64_t n;
  bool a_signed, b_signed;  // s8, else u8
  float sa, sb, sy;
  int32_t za, zb, zy, qmin, qmax;
  const AddMulShortcut* shortcut;  // `shortcut` only
};

using AddMulFn = void (*)(const AddMulArgs&);

struct AddMulRow {
  AddMulOp op;
  Code code;  // of q
  AddMulFn exact;
  AddMulFn shortcut;  // null where the ISA has none
  bool has_tables;    // whether a shortcut may be by_table
};

const AddMulRow& add_mul_row(Isa isa, AddMulOp op, Code code);

}  // namespace lowbit
