// What is out of bounds among parameters, and not finite among data.
#include <algorithm>
#include <atomic>

#include "drivers/elementwise/chunks.h"
#include "drivers/elementwise/elementwise.h"

namespace lowbit {
namespace {

// The index of the first element that is_bad, or -1. Blocks without one are passed over without a branch per element.
template <class T, class IsBad>
int64_t first(const T* x, int64_t begin, int64_t end, IsBad&& is_bad) {
  constexpr int64_t kBlock = 256;
  for (int64_t b = begin; b < end; b += kBlock) {
    const int64_t stop = std::min(end, b + kBlock);
    int32_t bad = 0;
    for (int64_t i = b; i < stop; ++i) bad |= is_bad(x[i]);
    for (int64_t i = b; bad != 0 && i < stop; ++i)
      if (is_bad(x[i])) return i;
  }
  return -1;
}

template <class T>
int64_t first_invalid_scale(const void* scale, int64_t n) {
  constexpr T least = static_cast<T>(0x1p-125), most = static_cast<T>(0x1.fffffep+127f / 65536.0f);
  return first(static_cast<const T*>(scale), 0, n, [](T s) { return !(s >= least && s <= most); });
}

// Elements whose exponent has all bits set are NaN or Inf.
template <class Bits>
int64_t first_nonfinite_as(const void* x, int64_t n, Bits exponent) {
  constexpr int64_t kTask = 1 << 18;
  std::atomic<int64_t> found{n};
  for_each_chunk(n, kTask, [&](int64_t begin, int64_t end) {
    if (begin > found) return;
    const int64_t i =
        first(static_cast<const Bits*>(x), begin, end, [exponent](Bits bits) { return (bits & exponent) == exponent; });
    for (int64_t before = found; i >= 0 && i < before && !found.compare_exchange_weak(before, i);) {
    }
  });
  return found < n ? found.load() : -1;
}

}  // namespace

int64_t invalid_parameter(const Affine& f, bool is_f64, int64_t scales) {
  const int64_t scale =
      is_f64 ? first_invalid_scale<double>(f.scale, scales) : first_invalid_scale<float>(f.scale, scales);
  if (scale >= 0 || f.zero == nullptr) return scale;
  const int64_t zero = first(f.zero, 0, scales, [&](int32_t z) { return (z < f.qmin) | (z > f.qmax); });
  return zero >= 0 ? -2 - zero : -1;
}

int64_t first_nonfinite(const void* x, Element element, int64_t n) {
  if (element == Element::f32) return first_nonfinite_as<uint32_t>(x, n, 0x7f800000u);
  if (element == Element::f64) return first_nonfinite_as<uint64_t>(x, n, uint64_t{0x7ff} << 52);
  return first_nonfinite_as<uint16_t>(x, n, element == Element::f16 ? 0x7c00 : 0x7f80);
}

}  // namespace lowbit
