#include "base/memory.h"

#include <exception>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace lowbit {

void* allocate(int64_t bytes) {
  constexpr int64_t kHugePage = 2 << 20;
  const bool is_large = bytes >= 2 * kHugePage;
  void* p = nullptr;
  if (posix_memalign(&p, static_cast<size_t>(is_large ? kHugePage : kCacheLine),
                     static_cast<size_t>(bytes == 0 ? kCacheLine : bytes)) != 0)
    throw std::bad_alloc();
#if defined(MADV_HUGEPAGE)
  // Whole huge pages only, so that no more memory is used than requested. Failure has no consequence.
  if (is_large) (void)madvise(p, static_cast<size_t>(bytes / kHugePage * kHugePage), MADV_HUGEPAGE);
#endif
  return p;
}

void prepare_thread() {
  (void)std::uncaught_exceptions();
  (void)thread_block(0);
}

void* thread_block(int64_t bytes) {
  thread_local Aligned<char> block;
  thread_local int64_t size = 0;
  if (size < bytes) {
    block.reset();  // first, so that only one block is held at a time
    size = 0;
    block = aligned<char>(bytes);
    size = bytes;
  }
  return block.get();
}

}  // namespace lowbit
