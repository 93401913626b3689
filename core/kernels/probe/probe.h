// What the machine can do at all: arithmetic on registers alone, and reading alone.
#pragma once
#include "base/arch.h"
#include "base/types.h"

namespace lowbit {

struct ProbeRow {
  int64_t (*fma)(int64_t rounds);            // operations done: a multiplication and an addition are two
  float (*read)(const float* x, int64_t n);  // n a multiple of kReadStep; the result is of no interest
};

constexpr int64_t kReadStep = 256;
const ProbeRow* probe_rows(Isa isa);

}  // namespace lowbit
