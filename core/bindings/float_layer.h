// What layers on floats check of their arguments, whichever way their weights are kept.
#pragma once
#include <nanobind/nanobind.h>

#include "bindings/arrays.h"
#include "bindings/gil.h"
#include "bindings/sizes.h"
#include "drivers/gemm/weight_only.h"

namespace lowbit {

// run(input, epilogue, out), with the GIL released, for x [m, k] to out [m, n].
template <class Run>
void run_float_layer(int64_t n, int64_t k, nanobind::handle input, Element element, int64_t m,
                     nanobind::handle bias_array, float floor, float ceiling, int result, nanobind::handle output,
                     const Run& run) {
  namespace nb = nanobind;
  if (element == Element::f64) throw nb::value_error("element: expected f32, f16 or bf16");
  if (result < 1 || result > 3) throw nb::value_error("result: expected f32, f16 or bf16");
  const Buffer x(input, "x"), out(output, "out", true);
  const Buffer bias = bias_array.is_none() ? Buffer() : Buffer(bias_array, "bias");
  const FloatInput from{x.as(), element, m};
  const FloatEpilogue to{static_cast<Result>(result), bias.as<float>(), floor, ceiling};
  x.require(product_of({m, k}, "m") * element_bytes(from.in), "x");
  if (bias) bias.require(4 * n, "bias");
  out.require(product_of({m, n}, "m") * result_bytes(to.result), "out");
  const GilReleased released;
  run(from, to, out.as());
}

}  // namespace lowbit
