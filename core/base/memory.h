// Memory aligned to cache lines, and parts of it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>

namespace lowbit {

constexpr int64_t kCacheLine = 64;

constexpr int64_t ceil_div(int64_t n, int64_t by) { return (n + by - 1) / by; }  // n not negative
constexpr int64_t round_up(int64_t n, int64_t to) { return ceil_div(n, to) * to; }
constexpr int64_t lines(int64_t bytes) { return round_up(bytes, kCacheLine); }

struct Free {
  void operator()(void* p) const { std::free(p); }
};
template <class T>
using Aligned = std::unique_ptr<T[], Free>;

// Throws bad_alloc. Large blocks use huge pages where the system offers them: weights are read in many streams at once,
// each on another page.
void* allocate(int64_t bytes);

template <class T>
Aligned<T> aligned(int64_t n) {
  return Aligned<T>(static_cast<T*>(allocate(lines(n * static_cast<int64_t>(sizeof(T))))));
}

// Cuts a block into parts aligned to cache lines.
class Cutter {
 public:
  explicit Cutter(void* block) : at_(static_cast<char*>(block)) {}
  template <class T>
  T* take(int64_t n) {
    T* part = reinterpret_cast<T*>(at_);
    at_ += lines(n * static_cast<int64_t>(sizeof(T)));
    return part;
  }

 private:
  char* at_;
};

// Makes the C library allocate the thread-local variables of this library and of C++ exceptions now. If it allocates
// them later and fails, as in a thread's first `throw std::bad_alloc`, it ends the process.
void prepare_thread();

// A block of at least `bytes` bytes that belongs to this thread, with undefined contents. Reused by later calls.
void* thread_block(int64_t bytes);

}  // namespace lowbit
