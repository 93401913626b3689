// Scales and zero points given with a call, and what is out of bounds among them.
#pragma once
#include "base/types.h"
#include "drivers/elementwise/elementwise.h"
#include "drivers/elementwise/gradients.h"

namespace lowbit {

inline int64_t compute_bytes(Element e) { return e == Element::f64 ? 8 : 4; }

// -1: all are within bounds. i >= 0: scale i is not; -2 - i: zero point i is not.
inline int64_t bad_parameter(const Affine& f, Element e, int64_t scales) {
  const int64_t scale = first_bad_scale(f.scale, e == Element::f64, scales);
  if (scale >= 0) return scale;
  const int64_t zero = first_bad_zero(f.zero, f.qmin, f.qmax, scales);
  return zero >= 0 ? -2 - zero : -1;
}

}  // namespace lowbit
