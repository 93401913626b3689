// Sizes, codes and shapes, as Python hands them over.
#pragma once
#include <nanobind/nanobind.h>

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/arch.h"
#include "base/granularity.h"
#include "base/types.h"
#include "bindings/arrays.h"
#include "kernels/logarithm/logarithm.h"

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
    if (size < 0) refuse(name, "must not be negative");
    is_empty |= size == 0;
    if (size > 0 && most > kMostElements / size) refuse(name, "more than 2^56 elements");
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

inline Code byte_code(Code code) {
  if (code != Code::s8 && code != Code::u8) throw nanobind::value_error("code: expected s8 or u8");
  return code;
}

inline void check_codes(Code code, int32_t lo, int32_t hi) {
  const int32_t least = byte_code(code) == Code::s8 ? -128 : 0;
  if (lo < least || lo > hi || hi > least + 255)
    throw nanobind::value_error("codes: expected an ordered range within the type");
}

// A code q represents (q - zero_point) * scale; codes are clamped to [qmin, qmax].
struct CodeParams {
  Code code;
  float scale;
  int32_t zero_point, qmin, qmax;

  CodeParams(Code of, double by, int32_t zero, int32_t lo, int32_t hi)
      : code(of), scale(static_cast<float>(by)), zero_point(zero), qmin(lo), qmax(hi) {
    check_codes(code, qmin, qmax);
  }
};

// Rows of an array [..., columns] whose elements have `item` bytes.
inline int64_t rows_of(const Buffer& array, int64_t columns, int64_t item, const char* name) {
  const Py_buffer& v = array.view();
  if (v.ndim < 1 || v.shape[v.ndim - 1] != columns || v.itemsize != item)
    refuse(name, "expected [..., " + std::to_string(columns) + "] with elements of " + std::to_string(item) + " bytes");
  return product_of(std::span<const Py_ssize_t>(v.shape, static_cast<size_t>(v.ndim - 1)), name);
}

// One value, or `many` of them; says which.
inline bool is_many(const Buffer& b, int64_t item, int64_t many, const char* name) {
  if (b.bytes() == item && many != 1) return false;
  b.require(item * many, name);
  return true;
}

// The struct-module format of an element or code as it is stored. bfloat16 has none (0): arrays of it are lent as
// uint16, or as a type of 16 bits without a format.
inline char format_of(Element e) { return "fde"[static_cast<int>(e)]; }
inline char compute_format(Element e) { return e == Element::f64 ? 'd' : 'f'; }
inline char format_of(Code code) { return "bBhHBBBBB"[static_cast<int>(code)]; }  // packed codes are bytes

inline const char* name_of(Element e) { return kElementNames[static_cast<int>(e)]; }
inline const char* name_of(Code c) { return kCodeNames[static_cast<int>(c)]; }
// The kernel a plan runs: family/ISA/types.
inline std::string kernel_name(const char* family, const char* from, const char* to) {
  const std::string key = *to == '\0' ? from : std::string(from) + " " + to;
  return std::string(family) + "/" + isa_name(active_isa()) + "/" + key;
}

// Thresholds and magnitudes of logarithmic codes, as many of one as of the other.
template <class T>
LogTable<T> log_table(Code code, const Buffer& thresholds, const Buffer& magnitudes) {
  if (code != Code::s8 && code != Code::s16 && code != Code::s4 && code != Code::s2)
    throw nanobind::value_error("code: logarithmic codes are signed");
  const int64_t n = thresholds.bytes() / static_cast<int64_t>(sizeof(T));
  if (n < 1) throw nanobind::value_error("thresholds: empty");
  thresholds.require(n * static_cast<int64_t>(sizeof(T)), "thresholds");
  magnitudes.require(thresholds.bytes(), "magnitudes");
  const T *t = thresholds.as<const T>(), *m = magnitudes.as<const T>();
  return LogTable<T>(std::vector<T>(t, t + n), std::vector<T>(m, m + n));
}

// The shape of an array, that of its scales, and which elements share one.
struct ScaledShape {
  std::vector<int64_t> shape, scale_shape;
  Granularity granularity;

  ScaledShape(std::vector<int64_t> dims, std::vector<int64_t> scale_dims, const Granularity& of)
      : shape(std::move(dims)), scale_shape(std::move(scale_dims)), granularity(of) {
    if (product_of(shape, "shape") != elements() || product_of(scale_shape, "scale_shape") != scales())
      throw nanobind::value_error("shape: not the granularity's number of elements or scales");
  }
  int64_t elements() const { return granularity.elements(); }
  int64_t scales() const { return granularity.scales(); }
  // The shape of its codes as they are stored.
  std::vector<int64_t> stored(Code code) const {
    return code_bits(code) < 8 ? std::vector<int64_t>{packed_bytes(code, elements())} : shape;
  }
};

}  // namespace lowbit
