// Codes of one byte under one scale, and arrays whose last axis is a row.
#pragma once
#include <nanobind/nanobind.h>

#include <cstdint>
#include <span>
#include <string>

#include "base/types.h"
#include "bindings/arrays.h"
#include "bindings/gil.h"
#include "bindings/sizes.h"

namespace lowbit {

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
};

// Rows of an array [..., columns] whose elements have `item` bytes.
inline int64_t rows_of(const Buffer& array, int64_t columns, int64_t item, const char* name) {
  const Py_buffer& v = array.view();
  if (v.ndim < 1 || v.shape[v.ndim - 1] != columns || v.itemsize != item)
    throw nanobind::value_error((std::string(name) + ": expected [..., " + std::to_string(columns) +
                                 "] with elements of " + std::to_string(item) + " bytes")
                                    .c_str());
  return product_of(std::span<const Py_ssize_t>(v.shape, static_cast<size_t>(v.ndim - 1)), name);
}

// One value, or `many` of them; says which.
inline bool is_many(const Buffer& b, int64_t item, int64_t many, const char* name) {
  if (b.bytes() == item && many != 1) return false;
  b.require(item * many, name);
  return true;
}

// A small product is computed faster than the GIL is released and taken again.
template <class Work>
void without_gil_for_product(int64_t m, int64_t n, int64_t k, Work&& work) {
  constexpr double kReleaseAtProducts = 1 << 18;
  const double products = static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  without_gil(products < kReleaseAtProducts ? 0 : kReleaseAt, work);
}

}  // namespace lowbit
