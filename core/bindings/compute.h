// Parts of the module that live in files of their own.
#pragma once
#include <nanobind/nanobind.h>

namespace lowbit {
void bind_gemm(nanobind::module_& m);
void bind_dwconv(nanobind::module_& m);
void bind_weight_only(nanobind::module_& m);
void bind_sketch(nanobind::module_& m);
}  // namespace lowbit
