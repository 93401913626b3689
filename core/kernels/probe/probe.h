// What the machine can do at all: arithmetic on registers alone, and reading alone.
#pragma once
#include "base/arch.h"
#include "base/types.h"

namespace lowbit {

struct ProbeRow {
  int64_t (*fma)(int64_t rounds);  // operations done: a multiplication and an addition are two
  // Reads n numbers, a multiple of kReadStep, so many times; the result is of no interest.
  float (*read)(const float* x, int64_t n, int64_t times);
};

constexpr int64_t kReadStep = 256;
const ProbeRow* probe_rows(Isa isa);

}  // namespace lowbit
