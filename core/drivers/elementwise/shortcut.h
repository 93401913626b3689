// Cheaper formulas for combine, each shown to give the same codes before it is used.
#pragma once
#include "kernels/combine/combine.h"

namespace lowbit {

// Elements that parameters must have seen before a shortcut is looked for, which takes about as long as it saves there.
constexpr int64_t kShortcutAfter = 1 << 20;

// A shortcut whose codes are those of row.exact for all 65,536 pairs of codes under the scales, zero points and types
// of k: it was run on all of them. One that does not exist: there is none.
CombineShortcut find_shortcut(const CombineRow& row, const CombineArgs& k);

// The same for the calling thread's parameters of many calls: remembered, and found once they have combined enough
// elements, these n included. Null: none, or not yet. Good until the thread asks again.
const CombineShortcut* remembered_shortcut(Isa isa, const CombineRow& row, const CombineArgs& k, int64_t n);

}  // namespace lowbit
