// Floats to codes and back.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

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

Code require_logarithmic(Code code) {
  if (code != Code::s8 && code != Code::s16 && code != Code::s4 && code != Code::s2)
    throw nb::value_error("code: logarithmic codes are signed");
  return code;
}

// Without a layout: one scale for as many elements as there are.
Granularity layout_or_flat(const Granularity* layout, int64_t elements) {
  if (layout != nullptr) return *layout;
  return Granularity{GranularityKind::tensor, 1, 1, elements, 1};
}

struct AffineSpec {
  Code code;
  int64_t scale_bytes;  // of one scale: 4 or 8
  Buffer scale, zero;
  int32_t qmin, qmax;

  AffineSpec(Code code_id, nb::handle scale_array, bool is_f64, nb::handle zero_array, int32_t lo, int32_t hi)
      : code(code_id), scale_bytes(is_f64 ? 8 : 4), scale(scale_array, "scale"), qmin(lo), qmax(hi) {
    if (!zero_array.is_none()) {
      zero = Buffer(zero_array, "zero_point");
      zero.require(scale.bytes() / scale_bytes * 4, "zero_point");
    }
  }
  Affine affine() const { return {code, scale.as(), zero.as<int32_t>(), qmin, qmax}; }

  void check(const Granularity& layout, Element e) const {
    if (compute_bytes(e) != scale_bytes) throw nb::value_error("scale: its type is not the element's compute type");
    scale.require(layout.scales() * scale_bytes, "scale");
  }
  void quantize(nb::handle x_array, Element element, nb::handle out_array, const Granularity* given) const {
    const Element in = element;
    const Buffer x(x_array, "x"), out(out_array, "out", true);
    const Granularity layout = layout_or_flat(given, x.bytes() / element_bytes(in));
    check(layout, in);
    const int64_t n = layout.elements();
    x.require(n * element_bytes(in), "x");
    out.require(packed_bytes(code, n), "out").require_apart("out", x, "x");
    without_gil(n, [&] { lowbit::quantize(layout, affine(), x.as(), in, out.as()); });
  }
  void dequantize(nb::handle q_array, nb::handle out_array, Element element, const Granularity* given) const {
    const Element e = element;
    const Buffer q(q_array, "q"), out(out_array, "out", true);
    const Granularity layout = layout_or_flat(given, out.bytes() / element_bytes(e));
    check(layout, e);
    const int64_t n = layout.elements();
    q.require(packed_bytes(code, n), "q");
    out.require(n * element_bytes(e), "out").require_apart("out", q, "q");
    without_gil(n, [&] { lowbit::dequantize(layout, affine(), q.as(), out.as(), e); });
  }
};

struct LogarithmicSpec {
  Code code;
  Buffer scale;
  std::variant<LogTable<float>, LogTable<double>> table;

  template <class T>
  static LogTable<T> make(nb::handle thresholds, nb::handle magnitudes) {
    const Buffer t(thresholds, "thresholds"), m(magnitudes, "magnitudes");
    m.require(t.bytes(), "magnitudes");
    const int64_t n = t.bytes() / static_cast<int64_t>(sizeof(T));
    if (n < 1) throw nb::value_error("thresholds: empty");
    return LogTable<T>(std::vector<T>(t.as<T>(), t.as<T>() + n), std::vector<T>(m.as<T>(), m.as<T>() + n));
  }
  LogarithmicSpec(Code code_id, nb::handle scale_array, bool is_f64, nb::handle thresholds, nb::handle magnitudes)
      : code(require_logarithmic(code_id)),
        scale(scale_array, "scale"),
        table(is_f64 ? decltype(table)(make<double>(thresholds, magnitudes))
                     : decltype(table)(make<float>(thresholds, magnitudes))) {}

  template <class T>
  static void check(const Granularity& layout, Element e, const Buffer& scale) {
    if (compute_bytes(e) != sizeof(T)) throw nb::value_error("scale: its type is not the element's compute type");
    scale.require(layout.scales() * static_cast<int64_t>(sizeof(T)), "scale");
  }
  void quantize(nb::handle x_array, Element element, nb::handle out_array, const Granularity& layout) const {
    const Element in = element;
    const Buffer x(x_array, "x"), out(out_array, "out", true);
    const int64_t n = layout.elements();
    x.require(n * element_bytes(in), "x");
    out.require(packed_bytes(code, n), "out").require_apart("out", x, "x");
    std::visit(
        [&]<class T>(const LogTable<T>& t) {
          check<T>(layout, in, scale);
          without_gil(n, [&] { log_quantize(layout, t, code, scale.as<const T>(), x.as(), in, out.as()); });
        },
        table);
  }
  void dequantize(nb::handle q_array, nb::handle out_array, Element element, const Granularity& layout) const {
    const Element e = element;
    const Buffer q(q_array, "q"), out(out_array, "out", true);
    const int64_t n = layout.elements();
    q.require(packed_bytes(code, n), "q");
    out.require(n * element_bytes(e), "out").require_apart("out", q, "q");
    std::visit(
        [&]<class T>(const LogTable<T>& t) {
          check<T>(layout, e, scale);
          without_gil(n, [&] { log_dequantize(layout, t, code, scale.as<const T>(), q.as(), out.as(), e); });
        },
        table);
  }
};

struct MixedSpec {
  std::vector<Code> code;
  std::vector<int64_t> offset;
  int64_t length, bytes = 0, scale_bytes;
  Buffer scale, zero, qmin, qmax;

  MixedSpec(const std::vector<Code>& codes, int64_t length_in, nb::handle scale_array, bool is_f64,
            nb::handle zero_array, nb::handle qmin_array, nb::handle qmax_array)
      : length(length_in),
        scale_bytes(is_f64 ? 8 : 4),
        scale(scale_array, "scale"),
        zero(zero_array, "zero_point"),
        qmin(qmin_array, "qmin"),
        qmax(qmax_array, "qmax") {
    product_of({static_cast<int64_t>(codes.size()), length}, "length");
    for (const Code id : codes) {
      code.push_back(id);
      offset.push_back(bytes);
      bytes += packed_bytes(code.back(), length);
    }
    const int64_t n = static_cast<int64_t>(codes.size());
    scale.require(n * scale_bytes, "scale");
    zero.require(n * 4, "zero_point");
    qmin.require(n * 4, "qmin");
    qmax.require(n * 4, "qmax");
  }
  MixedArgs args() const {
    return {static_cast<int64_t>(code.size()),
            length,
            code.data(),
            offset.data(),
            scale.as(),
            zero.as<int32_t>(),
            qmin.as<int32_t>(),
            qmax.as<int32_t>()};
  }
  int64_t elements() const { return length * static_cast<int64_t>(code.size()); }
  void check(Element e) const {
    if (compute_bytes(e) != scale_bytes) throw nb::value_error("scale: its type is not the element's compute type");
  }
  void quantize(nb::handle x_array, Element element, nb::handle out_array) const {
    const Element in = element;
    const Buffer x(x_array, "x"), out(out_array, "out", true);
    check(in);
    x.require(elements() * element_bytes(in), "x");
    out.require(bytes, "out").require_apart("out", x, "x");
    without_gil(elements(), [&] { quantize_mixed(args(), x.as(), in, out.as()); });
  }
  void dequantize(nb::handle q_array, nb::handle out_array, Element element) const {
    const Element e = element;
    const Buffer q(q_array, "q"), out(out_array, "out", true);
    check(e);
    q.require(bytes, "q");
    out.require(elements() * element_bytes(e), "out").require_apart("out", q, "q");
    without_gil(elements(), [&] { dequantize_mixed(args(), q.as(), out.as(), e); });
  }
};

std::tuple<int64_t, int64_t> quantize_dynamic_of(nb::handle x_array, Element element, nb::handle out_array,
                                                 Code code_id, const Granularity& layout, int32_t qmin, int32_t qmax,
                                                 int32_t divisor, nb::handle scale_array, nb::handle zero_array) {
  const Element in = element;
  const Code code = code_id;
  if (!fused_groups_fit(layout, code)) throw nb::value_error("layout: no fused kernel for it");
  const Buffer x(x_array, "x"), out(out_array, "out", true), scale(scale_array, "scale", true);
  Buffer zero;
  if (!zero_array.is_none()) {
    zero = Buffer(zero_array, "zero_point", true);
    zero.require(layout.scales() * 4, "zero_point");
  }
  x.require(layout.elements() * element_bytes(in), "x");
  out.require(packed_bytes(code, layout.elements()), "out").require_apart("out", x, "x");
  scale.require(layout.scales() * compute_bytes(in), "scale");
  const DynamicArgs args{code, qmin, qmax, divisor, scale.as(), zero.as<int32_t>()};
  DynamicResult result;
  without_gil(layout.elements(), [&] { result = quantize_dynamic(layout, args, x.as(), in, out.as()); });
  return {result.nan, result.bad_scale};
}

// Codes of x, or numbers of codes, under parameters given for this one call. As for fake_quant: -1, or which is bad.
int64_t convert_of(bool to_codes, Code code_id, nb::handle from_array, nb::handle to_array, Element element,
                   nb::handle scale_array, nb::handle zero_array, int32_t qmin, int32_t qmax,
                   const Granularity& layout) {
  const Code code = code_id;
  const Element e = element;
  const int64_t n = layout.elements(), scales = layout.scales();
  const int64_t floats = n * element_bytes(e), codes = packed_bytes(code, n);
  const Buffer from(from_array, "input"), to(to_array, "output", true), scale(scale_array, "scale"),
      zero(zero_array, "zero_point");
  from.require(to_codes ? floats : codes, "input"), to.require(to_codes ? codes : floats, "output");
  scale.require(scales * compute_bytes(e), "scale"), zero.require(scales * 4, "zero_point");
  require_all_apart({{to, "output"}}, {{from, "input"}, {scale, "scale"}, {zero, "zero_point"}});
  const Affine f{code, scale.as(), zero.as<int32_t>(), qmin, qmax};
  const int64_t bad = bad_parameter(f, e, scales);
  if (bad == -1 && n > 0)
    without_gil(n, [&] {
      to_codes ? quantize(layout, f, from.as(), e, to.as()) : dequantize(layout, f, from.as(), to.as(), e);
    });
  return bad;
}

std::pair<int64_t, int64_t> quantize_from_data_of(nb::handle x_array, Element element, nb::handle out_array,
                                                  Code code_id, const Granularity& layout, int32_t qmin, int32_t qmax,
                                                  int32_t divisor, nb::handle scale_array, nb::handle zero_array,
                                                  nb::handle workspace_array) {
  const Element e = element;
  const Code code = code_id;
  const int64_t n = layout.elements(), scales = layout.scales();
  const Buffer x(x_array, "input"), out(out_array, "output", true), scale(scale_array, "scale", true),
      workspace(workspace_array, "workspace", true);
  Buffer zero;
  if (!zero_array.is_none()) zero = Buffer(zero_array, "zero_point", true), zero.require(scales * 4, "zero_point");
  if (divisor == 0 && !zero) throw nb::value_error("zero_point: none, and the codes are not symmetric");
  x.require(n * element_bytes(e), "input"), out.require(packed_bytes(code, n), "output");
  scale.require(scales * compute_bytes(e), "scale");
  if (workspace.bytes() < dynamic_workspace(layout, e)) throw nb::value_error("workspace: too small");
  require_all_apart({{out, "output"}, {scale, "scale"}, {zero, "zero_point"}, {workspace, "workspace"}},
                    {{x, "input"}});
  DynamicResult found;
  // A symmetric fused kernel writes no zero points.
  const bool symmetric = divisor > 0;
  without_gil(n, [&] {
    const DynamicArgs d{code, qmin, qmax, divisor, scale.as(), symmetric ? nullptr : zero.as<int32_t>()};
    found = quantize_from_data(layout, d, x.as(), e, out.as(), workspace.as());
    if (symmetric && zero)
      for (int64_t i = 0; i < scales; ++i) zero.as<int32_t>()[i] = std::min(std::max(0, qmin), qmax);
  });
  return {found.nan, found.bad_scale};
}

}  // namespace

void bind_quantize(nb::module_& m) {
  nb::class_<AffineSpec>(m, "Affine", "Linear codes: scales and zero points, lent by their arrays.")
      .def(nb::init<Code, nb::handle, bool, nb::handle, int32_t, int32_t>(), "code"_a, "scale"_a, "is_f64"_a,
           "zero_point"_a.none(), "qmin"_a, "qmax"_a)
      .def("quantize", &AffineSpec::quantize, "x"_a, "element"_a, "out"_a, "layout"_a.none() = nb::none())
      .def("dequantize", &AffineSpec::dequantize, "q"_a, "out"_a, "element"_a, "layout"_a.none() = nb::none());

  nb::class_<LogarithmicSpec>(m, "Logarithmic", "Logarithmic codes: scales, thresholds and magnitudes.")
      .def(nb::init<Code, nb::handle, bool, nb::handle, nb::handle>(), "code"_a, "scale"_a, "is_f64"_a, "thresholds"_a,
           "magnitudes"_a)
      .def("quantize", &LogarithmicSpec::quantize, "x"_a, "element"_a, "out"_a, "layout"_a)
      .def("dequantize", &LogarithmicSpec::dequantize, "q"_a, "out"_a, "element"_a, "layout"_a);

  nb::class_<MixedSpec>(m, "Mixed", "A code width a channel; channels are the rows of a contiguous array.")
      .def(nb::init<const std::vector<Code>&, int64_t, nb::handle, bool, nb::handle, nb::handle, nb::handle>(),
           "codes"_a, "length"_a, "scale"_a, "is_f64"_a, "zero_point"_a, "qmin"_a, "qmax"_a)
      .def_prop_ro("nbytes", [](const MixedSpec& s) { return s.bytes; })
      .def_prop_ro("offsets", [](const MixedSpec& s) { return s.offset; })
      .def("quantize", &MixedSpec::quantize, "x"_a, "element"_a, "out"_a)
      .def("dequantize", &MixedSpec::dequantize, "q"_a, "out"_a, "element"_a);

  m.def("quantize_dynamic", &quantize_dynamic_of, "x"_a, "element"_a, "out"_a, "code"_a, "layout"_a, "qmin"_a, "qmax"_a,
        "divisor"_a, "scale"_a, "zero_point"_a.none(),
        "Range, parameters, codes and packing in one read; returns (NaN seen, scales out of bounds).");
  m.def(
      "fused_groups_fit", [](const Granularity& layout, Code code) { return fused_groups_fit(layout, code); },
      "layout"_a, "code"_a, "Whether quantize_dynamic serves this layout.");
  m.def("convert", &convert_of, "to_codes"_a, "code"_a, "input"_a, "output"_a, "element"_a, "scale"_a, "zero_point"_a,
        "qmin"_a, "qmax"_a, "layout"_a,
        "quantize or dequantize under parameters of this one call. Returns as fake_quant.");
  m.def("quantize_from_data", &quantize_from_data_of, "input"_a, "element"_a, "output"_a, "code"_a, "layout"_a,
        "qmin"_a, "qmax"_a, "divisor"_a, "scale"_a, "zero_point"_a.none(), "workspace"_a,
        "Parameters from the data, and its codes; returns (NaN seen, scales out of bounds).");
  m.def(
      "dynamic_workspace",
      [](const Granularity& layout, Element element) { return dynamic_workspace(layout, element); }, "layout"_a,
      "element"_a, "Bytes quantize_from_data works in.");
}

}  // namespace lowbit
