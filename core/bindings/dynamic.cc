// Quantization with parameters found in the data.

#include <algorithm>

#include "bindings/bindings.h"
#include "bindings/shapes.h"
#include "drivers/elementwise/elementwise.h"

namespace lowbit {
namespace {

struct DynamicQuantizePlan {
  Element element;
  Code code;
  ScaledShape shape;
  int32_t qmin, qmax, divisor;  // divisor > 0: symmetric, scale = max|x| / divisor

  bool fused() const { return fused_groups_fit(shape.granularity, code) && qmin <= 0 && qmax > 0; }
  int64_t workspace_bytes() const { return dynamic_workspace(shape.granularity, element); }
  std::string kernel() const { return kernel_name("quantize", name_of(element), name_of(code)); }

  std::optional<std::pair<int64_t, int64_t>> run(Candidate from, Candidate to, const Array<Real>& scale,
                                                 const std::optional<Array<int32_t>>& zero,
                                                 const std::optional<Array<void>>& workspace) const {
    const Granularity& g = shape.granularity;
    const int64_t n = g.elements(), scales = g.scales();
    const Buffer x = Buffer::exactly(from, format_of(element), shape.shape, false),
                 out = Buffer::exactly(to, format_of(code), shape.stored(code), true);
    if (!x || !out) return std::nullopt;
    scale.require(scales * compute_bytes(element), "scale");
    require(zero, scales * 4, "zero_point");
    if (divisor == 0 && !zero) throw nb::value_error("zero_point: None, and the codes are not symmetric");
    const Buffer& room = buffer_of(workspace);
    if (!fused() && room.bytes() < workspace_bytes()) throw nb::value_error("workspace: too small");
    const Buffer* const all[] = {&x, &out, &scale, &buffer_of(zero), &room};
    for (const Buffer* const& a : all)
      for (const Buffer* const* b = all; b != &a; ++b)
        if (a->shares(**b)) return std::nullopt;
    DynamicResult found;
    without_gil(n, [&] {
      // A symmetric kernel writes no zero points.
      const DynamicArgs args{code, qmin, qmax, divisor, scale.as(), divisor > 0 ? nullptr : data_of(zero)};
      found = quantize_from_data(g, args, x.as(), element, out.as(), room.as());
      if (divisor > 0 && zero) std::fill_n(zero->data(), scales, std::min(std::max(0, qmin), qmax));
    });
    return std::pair{found.nan, found.bad_scale};
  }
};

}  // namespace

void bind_dynamic(nb::module_& m) {
  nb::class_<DynamicQuantizePlan>(m, "DynamicQuantizePlan", "Range, parameters and codes of an array in one call.")
      .def(nb::init<Element, Code, ScaledShape, int32_t, int32_t, int32_t>(), "element"_a, "code"_a, "shape"_a,
           "qmin"_a, "qmax"_a, "divisor"_a, "divisor > 0: symmetric, scale = max|x| / divisor; 0: asymmetric.")
      .def_ro("code", &DynamicQuantizePlan::code)
      .def_prop_ro("fused", &DynamicQuantizePlan::fused, "Whether the data is read once, and no workspace needed.")
      .def_prop_ro("workspace_bytes", &DynamicQuantizePlan::workspace_bytes)
      .def_prop_ro("kernel", &DynamicQuantizePlan::kernel, "The kernel that runs: family/ISA/types.")
      .def("run", &DynamicQuantizePlan::run, "x"_a, "out"_a, "scale"_a, "zero_point"_a.none(), "workspace"_a.none(),
           "(NaN seen, scales out of bounds); None where x or out is not just as described, or arrays share memory, "
           "and nothing was done.");
}

}  // namespace lowbit
