// Ranges and means of arrays.
#include "bindings/arrays.h"
#include "bindings/bindings.h"
#include "bindings/gil.h"
#include "bindings/parameters.h"
#include "bindings/sizes.h"
#include "drivers/elementwise/elementwise.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lowbit {
namespace {

int64_t range_of(const Array<const void>& x, Element element, const Granularity& layout, const Array<void>& lo,
                 const Array<void>& hi) {
  x.require(layout.elements() * element_bytes(element), "x");
  lo.require(layout.scales() * compute_bytes(element), "lo");
  hi.require(layout.scales() * compute_bytes(element), "hi");
  int64_t nan = 0;
  without_gil(layout.elements(), [&] { nan = range(layout, x.data(), element, lo.data(), hi.data()); });
  return nan;
}

void mean_abs_of(const Array<const void>& x, Element element, int64_t length, const Array<double>& out) {
  if (length < 1) throw nb::value_error("length: must be positive");
  x.require(product_of({length, out.size()}, "length") * element_bytes(element), "x");
  without_gil(length * out.size(), [&] { mean_abs(x.data(), element, length, out.size(), out.data()); });
}

}  // namespace

void bind_range(nb::module_& m) {
  m.def("range", &range_of, "x"_a, "element"_a, "layout"_a, "lo"_a, "hi"_a,
        "Writes min and max per scale; returns the number of NaN.");
  m.def("mean_abs", &mean_abs_of, "x"_a, "element"_a, "length"_a, "out"_a,
        "Writes the mean of |x| of each run of `length` elements.");
}

}  // namespace lowbit
