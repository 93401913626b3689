// The parts of the module: one file an operation.
//
// Conventions of this folder:
//   - Arrays are Array<T> (arrays.h), sizes are checked with product_of (sizes.h), enums are the core's own, bound in
//     enums.cc. A missing array is std::optional<Array<T>>.
//   - Nothing takes more than six parameters besides self: what belongs together is a small bound struct.
//   - Work on many elements runs in without_gil (gil.h).
#pragma once
#include <nanobind/nanobind.h>

namespace lowbit {

void bind_errors(nanobind::module_& m);
void bind_enums(nanobind::module_& m);
void bind_granularity(nanobind::module_& m);
void bind_quantize(nanobind::module_& m);
void bind_dynamic(nanobind::module_& m);
void bind_fake_quantize(nanobind::module_& m);
void bind_range(nanobind::module_& m);
void bind_pack(nanobind::module_& m);
void bind_epilogue(nanobind::module_& m);
void bind_gemm(nanobind::module_& m);
void bind_linear(nanobind::module_& m);
void bind_conv(nanobind::module_& m);
void bind_elementwise(nanobind::module_& m);
void bind_binary(nanobind::module_& m);
void bind_schedule(nanobind::module_& m);
void bind_sketch(nanobind::module_& m);
void bind_hardware(nanobind::module_& m);

}  // namespace lowbit
