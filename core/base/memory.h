// Memory on cache lines, and pieces cut from it.
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

// Throws bad_alloc. Large blocks are in huge pages where the system gives them to those who ask: weights are read from
// many places at once, each another page.
void* allocate(int64_t bytes);

template <class T>
Aligned<T> aligned(int64_t n) {
  return Aligned<T>(static_cast<T*>(allocate(lines(n * static_cast<int64_t>(sizeof(T))))));
}

// Cuts pieces from a block, each on a cache line.
class Cutter {
 public:
  explicit Cutter(void* block) : at_(static_cast<char*>(block)) {}
  template <class T>
  T* take(int64_t n) {
    T* piece = reinterpret_cast<T*>(at_);
    at_ += lines(n * static_cast<int64_t>(sizeof(T)));
    return piece;
  }

 private:
  char* at_;
};

// Has the C library allocate this thread's variables, this library's and those of the C++ runtime's exceptions, while
// there is memory: where it does so later and cannot, as in a thread's first `throw std::bad_alloc`, it ends the
// process.
void prepare_thread();

// This thread's own block of at least so many bytes; what was in it is gone. Kept for the next call.
void* thread_block(int64_t bytes);

}  // namespace lowbit
