// Measurements of peak arithmetic throughput and read bandwidth.
#pragma once
#include "base/types.h"
#include "kernels/families.h"

namespace lowbit {

struct PeakRow {
  int64_t (*fma)(int64_t rounds);  // returns operations: a multiplication and an addition are two
  // Reads n floats, a multiple of kReadStep, `times` times; the result has no meaning.
  float (*read)(const float* x, int64_t n, int64_t times);
};

constexpr int64_t kReadStep = 256;

}  // namespace lowbit
