// Shortcut formulas for add and mul, each proved to give the exact codes before it is used.
#pragma once
#include "kernels/add_mul/add_mul.h"

namespace lowbit {

// Elements computed with the same parameters before a shortcut is searched for. The search takes about as long as a
// shortcut saves on this number of elements.
constexpr int64_t kShortcutAfter = 1 << 20;

// A shortcut that gives the codes of row.exact for all 65,536 pairs of codes under the scales, zero points and types of
// k, shown by running it on all of them; exists() is false where there is none.
AddMulShortcut find_shortcut(const AddMulRow& row, const AddMulArgs& k);

// The same from a cache of the calling thread. The search runs once these parameters have been used for kShortcutAfter
// elements, these n included. Null: none, or not yet. Valid until the next call of this thread.
const AddMulShortcut* cached_shortcut(Isa isa, const AddMulRow& row, const AddMulArgs& k, int64_t n);

}  // namespace lowbit
