// Ranges and means of arrays, and the first element that is not finite.

#include "bindings/bindings.h"
#include "bindings/shapes.h"
#include "drivers/elementwise/checks.h"
#include "drivers/elementwise/elementwise.h"

namespace lowbit {
namespace {

struct RangePlan {
  Element element;
  Granularity granularity;

  std::string kernel() const { return kernel_name("range", name_of(element), ""); }
  int64_t run(const Array<const void>& x, const Array<Real>& lo, const Array<Real>& hi) const {
    x.require(granularity.elements() * element_bytes(element), "x");
    lo.require(granularity.scales() * compute_bytes(element), "lo");
    hi.require(granularity.scales() * compute_bytes(element), "hi");
    int64_t nan = 0;
    without_gil(granularity.elements(), [&] { nan = range(granularity, x.data(), element, lo.as(), hi.as()); });
    return nan;
  }
};

void mean_abs_of(const Array<const void>& x, Element element, int64_t length, const Array<double>& out) {
  if (length < 1) throw nb::value_error("length: must be positive");
  x.require(product_of({length, out.size()}, "length") * element_bytes(element), "x");
  without_gil(length * out.size(), [&] { mean_abs(x.data(), element, length, out.size(), out.data()); });
}

int64_t first_nonfinite_of(const Array<const void>& x, Element element) {
  const int64_t n = x.bytes() / element_bytes(element);
  x.require(n * element_bytes(element), "x");
  int64_t found = -1;
  without_gil(n, [&] { found = first_nonfinite(x.data(), element, n); });
  return found;
}

}  // namespace

void bind_range(nb::module_& m) {
  nb::class_<RangePlan>(m, "RangePlan", "The least and the greatest number per scale.")
      .def(nb::init<Element, Granularity>(), "element"_a, "granularity"_a)
      .def_prop_ro("kernel", &RangePlan::kernel, "The kernel that runs: family/ISA/types.")
      .def("run", &RangePlan::run, "x"_a, "lo"_a, "hi"_a,
           "Writes them in the compute type, +Inf and -Inf where there is none; returns the number of NaN.");
  m.def("mean_abs", &mean_abs_of, "x"_a, "element"_a, "length"_a, "out"_a,
        "Writes the mean of |x| of each run of `length` elements.");
  m.def("first_nonfinite", &first_nonfinite_of, "x"_a, "element"_a, "The index of the first NaN or Inf, or -1.");
}

}  // namespace lowbit
