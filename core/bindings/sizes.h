// Sizes, as Python hands them over.
#pragma once
#include <nanobind/nanobind.h>

#include <cstdint>
#include <initializer_list>
#include <string>

namespace lowbit {

// More than any memory holds, and few enough that the bytes, bits and padded sizes of such an array fit an int64.
constexpr int64_t kMostElements = int64_t{1} << 56;

// The product of sizes, none negative. As NumPy does, refuses sizes whose product is beyond memory even where another
// one of them is 0: drivers multiply some of them alone.
template <class Sizes>
int64_t product_of(const Sizes& sizes, const char* name) {
  int64_t most = 1;
  bool is_empty = false;
  for (const int64_t size : sizes) {
    if (size < 0) throw nanobind::value_error((std::string(name) + ": must not be negative").c_str());
    is_empty |= size == 0;
    if (size > 0 && most > kMostElements / size)
      throw nanobind::value_error((std::string(name) + ": more than 2^56 elements").c_str());
    most *= size > 0 ? size : 1;
  }
  return is_empty ? 0 : most;
}
inline int64_t product_of(std::initializer_list<int64_t> sizes, const char* name) {
  return product_of<std::initializer_list<int64_t>>(sizes, name);
}

// Sizes of a product [m, k] by [k, n].
inline void check_product(int64_t m, int64_t n, int64_t k) {
  product_of({m, k}, "m, k"), product_of({k, n}, "k, n"), product_of({m, n}, "m, n");
}

// Elements that share a scale. A block longer than the axis is as good as one of just its length.
inline int64_t block_of(int64_t block) {
  if (block < 1) throw nanobind::value_error("block: must be positive");
  return block < kMostElements ? block : kMostElements;
}

}  // namespace lowbit
