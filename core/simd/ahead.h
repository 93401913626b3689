// Software prefetch, for loops that hardware prefetchers do not follow.
#pragma once
#include <cstdint>

namespace lowbit {

// Prefetches `bytes` that a loop reads once, Ahead bytes later (non-temporal hint).
template <int64_t Ahead>
inline __attribute__((always_inline)) void prefetch_ahead(const void* p, int64_t bytes) {
  constexpr int64_t kLine = 64;
  for (int64_t line = 0; line < bytes; line += kLine)
    __builtin_prefetch(static_cast<const char*>(p) + Ahead + line, 0, 0);
}

}  // namespace lowbit
