// What drivers over flat arrays share: addresses, and chunks that do not depend on the number of threads.
#pragma once
#include <algorithm>
#include <cstdint>

#include "base/fp_environment.h"
#include "base/threads.h"
#include "base/types.h"

namespace lowbit {

inline const char* at(const void* p, int64_t bytes) { return static_cast<const char*>(p) + bytes; }
inline char* at(void* p, int64_t bytes) { return static_cast<char*>(p) + bytes; }

inline bool is_packed_signed(Code code) { return code == Code::s4 || code == Code::s2; }
// The type that codes have before they are packed, one per byte.
inline Code unpacked_code(Code code) {
  if (code_bits(code) >= 8 || code == Code::b1) return code;
  return is_packed_signed(code) ? Code::s8 : Code::u8;
}

// body(begin, end), on any thread, in an FpEnvironment.
template <class Body>
void for_each_chunk(int64_t n, int64_t chunk, Body&& body) {
  const int64_t chunks = (n + chunk - 1) / chunk;
  if (chunks == 1) {
    const FpEnvironment environment;
    body(0, n);
  } else {
    parallel_for(chunks, [&](int64_t k) { body(k * chunk, std::min(n, (k + 1) * chunk)); });
  }
}

}  // namespace lowbit
