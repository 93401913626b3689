// Asking for memory some time before it is used, for loops that leave the hardware too little room to guess.
#pragma once
#include <cstdint>

namespace lowbit {

// Asks for `bytes` that a loop will read Ahead bytes from now, and once.
template <int64_t Ahead>
inline __attribute__((always_inline)) void ask_ahead(const void* p, int64_t bytes) {
  constexpr int64_t kLine = 64;
  for (int64_t line = 0; line < bytes; line += kLine)
    __builtin_prefetch(static_cast<const char*>(p) + Ahead + line, 0, 0);
}

}  // namespace lowbit
