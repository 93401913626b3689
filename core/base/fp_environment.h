// Round-to-nearest-even, no flush-to-zero: the floating-point state the contract is written for.
// A host library may have changed the calling thread's state (torch.set_flush_denormal does); parallel_for,
// and what does float arithmetic outside of it, holds one of these, so results never depend on it.
#pragma once
#include <cstdint>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace lowbit {

class FpEnvironment {
 public:
#if defined(__x86_64__)
  FpEnvironment() : saved_(_mm_getcsr()) {
    if ((saved_ & kControl) != kDefault) _mm_setcsr((saved_ & ~kControl) | kDefault);
  }
  ~FpEnvironment() {
    if ((saved_ & kControl) != kDefault) _mm_setcsr(saved_);
  }

 private:
  static constexpr uint32_t kControl = 0xffc0;  // masks, rounding, FTZ, DAZ
  static constexpr uint32_t kDefault = 0x1f80;  // all exceptions masked, nearest-even
  uint32_t saved_;
#elif defined(__aarch64__)
  FpEnvironment() {
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    if (saved_ != 0) asm volatile("msr fpcr, %0" ::"r"(uint64_t{0}));
  }
  ~FpEnvironment() {
    if (saved_ != 0) asm volatile("msr fpcr, %0" ::"r"(saved_));
  }

 private:
  uint64_t saved_;
#else
  FpEnvironment() {}
#endif
  FpEnvironment(const FpEnvironment&) = delete;
  FpEnvironment& operator=(const FpEnvironment&) = delete;
};

}  // namespace lowbit
