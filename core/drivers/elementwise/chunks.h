// Flat work cut into chunks that do not depend on the number of threads.
#pragma once
#include <algorithm>
#include <cstdint>

#include "base/fp_environment.h"
#include "base/threads.h"

namespace lowbit {

// body(begin, end), on any thread, with the contract's floating-point environment.
template <class Body>
void for_each_chunk(int64_t n, int64_t chunk, Body&& body) {
  const int64_t chunks = (n + chunk - 1) / chunk;
  const auto task = [&](int64_t k) {
    const FpEnvironment environment;
    body(k * chunk, std::min(n, (k + 1) * chunk));
  };
  if (chunks == 1) {
    task(0);
  } else {
    parallel_for(chunks, task);
  }
}

}  // namespace lowbit
