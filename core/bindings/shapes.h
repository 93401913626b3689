// What element-wise plans are built from: the shapes of an array and of its scales.
#pragma once
#include <nanobind/nanobind.h>

#include <string>
#include <utility>
#include <vector>

#include "base/arch.h"
#include "base/granularity.h"
#include "base/types.h"
#include "bindings/arrays.h"
#include "bindings/sizes.h"

namespace lowbit {

// The struct-module format of an element or code as it is stored. bfloat16 has none (0): arrays of it are lent as
// uint16, or as a type of 16 bits without a format.
inline char format_of(Element e) { return "fde"[static_cast<int>(e)]; }
inline char compute_format(Element e) { return e == Element::f64 ? 'd' : 'f'; }
inline char format_of(Code code) {
  switch (code) {
    case Code::s8:
      return 'b';
    case Code::s16:
      return 'h';
    case Code::u16:
      return 'H';
    default:
      return 'B';  // u8, and all that are packed
  }
}

inline const char* name_of(Element e) { return kElementNames[static_cast<int>(e)]; }
inline const char* name_of(Code c) { return kCodeNames[static_cast<int>(c)]; }
// The kernel a plan runs: family/ISA/types.
inline std::string kernel_name(const char* family, const char* from, const char* to) {
  const std::string key = *to == '\0' ? from : std::string(from) + " " + to;
  return std::string(family) + "/" + isa_name(active_isa()) + "/" + key;
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
