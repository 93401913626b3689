#include "base/memory.h"

namespace lowbit {

void* thread_block(int64_t bytes) {
  thread_local Aligned<char> block;
  thread_local int64_t size = 0;
  if (size < bytes) {
    block.reset();  // first, so that both are never held
    size = 0;
    block = aligned<char>(bytes);
    size = bytes;
  }
  return block.get();
}

}  // namespace lowbit
