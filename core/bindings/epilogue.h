// What becomes of sums, as Python hands it over.
#pragma once
#include <nanobind/nanobind.h>

#include "bindings/arrays.h"
#include "drivers/gemm/gemm.h"

namespace lowbit {

inline Buffer optional(nanobind::handle array, const char* name) {
  return array.is_none() ? Buffer() : Buffer(array, name);
}

// One value, or `many` of them; says which.
inline bool is_many(const Buffer& b, int64_t item, int64_t many, const char* name) {
  if (b.bytes() == item && many != 1) return false;
  b.require(item * many, name);
  return true;
}

// Everything after the sums, held while a call runs.
struct EpilogueSpec {
  Result result;
  Buffer scale, row_scale, bias, add;
  float floor, ceiling, out_scale;
  int32_t zero, lo, hi;

  EpilogueSpec(int kind, nanobind::handle scale_array, nanobind::handle row_scale_array, nanobind::handle bias_array,
               nanobind::handle add_array, float least, float greatest, float step, int32_t zero_point, int32_t qmin,
               int32_t qmax)
      : scale(optional(scale_array, "scale")),
        row_scale(optional(row_scale_array, "row_scale")),
        bias(optional(bias_array, "bias")),
        add(optional(add_array, "add")),
        floor(least),
        ceiling(greatest),
        out_scale(step),
        zero(zero_point),
        lo(qmin),
        hi(qmax) {
    if (kind < 0 || kind > 5) throw nanobind::value_error("result: unknown id");
    result = static_cast<Result>(kind);
    if (result != Result::s32 && !scale) throw nanobind::value_error("scale: missing");
  }
  Epilogue epilogue(int64_t m, int64_t n) const {
    Epilogue f;
    f.result = result;
    f.add = add.as<int32_t>();
    if (add) add.require(4 * n, "add");
    f.bias = bias.as<float>();
    if (bias) bias.require(4 * n, "bias");
    f.scale = scale.as<float>();
    if (scale) f.scale_per_column = is_many(scale, 4, n, "scale");
    f.row_scale = row_scale.as<float>();
    if (row_scale) f.scale_per_row = is_many(row_scale, 4, m, "row_scale");
    f.floor = floor, f.ceiling = ceiling, f.out_scale = out_scale, f.zero = zero, f.lo = lo, f.hi = hi;
    return f;
  }
};

}  // namespace lowbit
