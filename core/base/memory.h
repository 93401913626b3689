// Memory on cache lines, and pieces cut from it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

namespace lowbit {

constexpr int64_t kCacheLine = 64;

constexpr int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
constexpr int64_t lines(int64_t bytes) { return round_up(bytes, kCacheLine); }

struct Free {
  void operator()(void* p) const { std::free(p); }
};
template <class T>
using Aligned = std::unique_ptr<T[], Free>;

template <class T>
Aligned<T> aligned(int64_t n) {
  const int64_t bytes = lines(n * static_cast<int64_t>(sizeof(T)));
  void* p = std::aligned_alloc(kCacheLine, static_cast<size_t>(bytes == 0 ? kCacheLine : bytes));
  if (p == nullptr) throw std::bad_alloc();
  return Aligned<T>(static_cast<T*>(p));
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

// This thread's own block of at least so many bytes; what was in it is gone. Kept for the next call.
void* thread_block(int64_t bytes);

}  // namespace lowbit
