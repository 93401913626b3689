// What is done to arrays of codes: sums, products, bounds, tables, pooling.
#pragma once
#include <nanobind/nanobind.h>

namespace lowbit {

void bind_combine(nanobind::module_& m);

}  // namespace lowbit
