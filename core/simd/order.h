// Which way to go through arrays, so that what a loop writes does not get in the way of what it reads next.
//
// A load waits for a store before it whose address has the same last 12 bits, and AMD's L1 finds a line by a hash of
// its address, where one just written seems to
// hide one about to be read (times fit that; no counter was at hand to show it). Both happen where results lie a little
// further in their page than operands, as arrays do that malloc placed one behind the other. A loop from the end to the
// beginning then writes where it has read already.
#pragma once
#include <cstdint>
#include <initializer_list>

namespace lowbit {

// Whether writing y from the end on keeps clear of x, and of `also`, for longer.
static inline __attribute__((always_inline)) bool is_better_backwards(const void* y, const void* x, const void* also) {
  constexpr uintptr_t kPage = 4096;
  const auto distance = [](const void* to, const void* from) {
    return (reinterpret_cast<uintptr_t>(to) - reinterpret_cast<uintptr_t>(from)) % kPage;
  };
  uintptr_t forwards = kPage, backwards = kPage;  // bytes until a store meets a load to come; in place none does
  for (const void* operand : {x, also}) {
    if (distance(y, operand) == 0) continue;
    forwards = forwards < distance(y, operand) ? forwards : distance(y, operand);
    backwards = backwards < distance(operand, y) ? backwards : distance(operand, y);
  }
  return forwards < backwards;
}
static inline __attribute__((always_inline)) bool is_better_backwards(const void* y, const void* x) {
  return is_better_backwards(y, x, x);
}

// block(i) for i = 0, Step, ... while whole blocks are below n, in either order. Returns where they end.
template <int Step, class Block>
static inline __attribute__((always_inline)) int64_t each_block(int64_t n, bool backwards, const Block& block) {
  const int64_t end = n / Step * Step;
  if (backwards) {
    for (int64_t i = end; i > 0;) block(i -= Step);
  } else {
    for (int64_t i = 0; i < end; i += Step) block(i);
  }
  return end;
}

}  // namespace lowbit
