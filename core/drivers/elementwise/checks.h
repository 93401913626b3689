// What is out of bounds among parameters, and not finite among data.
#pragma once
#include "drivers/elementwise/elementwise.h"

namespace lowbit {

// -1, or the first parameter outside the contract's bounds: scale i as i, zero point i as -2 - i.
int64_t invalid_parameter(const Affine& affine, bool is_f64, int64_t scales);

// The index of the first NaN or Inf, or -1.
int64_t first_nonfinite(const void* x, Element element, int64_t n);

}  // namespace lowbit
