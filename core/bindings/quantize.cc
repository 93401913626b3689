// Quantize and dequantize with given parameters; ranges of data, and quantize with parameters found in it.

#include <algorithm>

#include "bindings/bindings.h"
#include "drivers/elementwise/elementwise.h"

namespace lowbit {
namespace {

using Scales = Array<const Real>;
using ZeroPoints = std::optional<Array<const int32_t>>;

// How numbers become codes: the parameters of one array, whose memory stays lent.
struct Mapping {
  Code code;
  bool is_f64;
  int64_t scales;

  virtual ~Mapping() = default;
  virtual void quantize(const Granularity& g, const void* x, Element in, void* q) const = 0;
  virtual void dequantize(const Granularity& g, const void* q, void* y, Element out) const = 0;

  void require_fit(Code of, Element element, const ScaledShape& shape) const {
    if (code != of) throw nb::value_error("parameters: their codes are not the plan's");
    if (is_f64 != (element == Element::f64)) throw nb::value_error("scale: its type is not the element's compute type");
    if (scales != shape.scales()) throw nb::value_error("scale: not the plan's number of scales");
  }

 protected:
  Mapping(Code of, const Scales& scale)
      : code(of), is_f64(scale.view().format[0] == 'd'), scales(scale.bytes() / (is_f64 ? 8 : 4)) {}
};

struct AffineMapping : Mapping {
  Scales scale;
  ZeroPoints zero;
  Affine affine;
  int64_t first_invalid;  // see invalid_parameter

  AffineMapping(Code of, Scales s, ZeroPoints z, int32_t qmin, int32_t qmax)
      : Mapping(of, s), scale(std::move(s)), zero(std::move(z)), affine{of, scale.as(), data_of(zero), qmin, qmax} {
    require(zero, scales * 4, "zero_point");
    first_invalid = invalid_parameter(affine, is_f64, scales);
  }
  void quantize(const Granularity& g, const void* x, Element in, void* q) const override {
    lowbit::quantize(g, affine, x, in, q);
  }
  void dequantize(const Granularity& g, const void* q, void* y, Element out) const override {
    lowbit::dequantize(g, affine, q, y, out);
  }
};

struct LogarithmicMapping : Mapping {
  Scales scale;
  using Table = std::variant<LogTable<float>, LogTable<double>>;
  Table table;

  LogarithmicMapping(Code of, Scales s, const Scales& thresholds, const Scales& magnitudes)
      : Mapping(of, s),
        scale(std::move(s)),
        table(is_f64 ? Table(log_table<double>(of, thresholds, magnitudes))
                     : Table(log_table<float>(of, thresholds, magnitudes))) {}
  void quantize(const Granularity& g, const void* x, Element in, void* q) const override {
    std::visit([&]<class T>(const LogTable<T>& t) { log_quantize(g, t, code, scale.as<const T>(), x, in, q); }, table);
  }
  void dequantize(const Granularity& g, const void* q, void* y, Element out) const override {
    std::visit([&]<class T>(const LogTable<T>& t) { log_dequantize(g, t, code, scale.as<const T>(), q, y, out); },
               table);
  }
};

// Numbers to codes, or codes to numbers.
template <bool kToCodes>
struct CodesPlan {
  Element element;
  Code code;
  ScaledShape shape;
  std::vector<int64_t> stored;

  CodesPlan(Element of, Code to, ScaledShape s)
      : element(of), code(to), shape(std::move(s)), stored(shape.stored(to)) {}

  std::string kernel() const {
    return kToCodes ? kernel_name("quantize", name_of(element), name_of(code))
                    : kernel_name("dequantize", name_of(code), name_of(element));
  }

  bool run(Candidate from, Candidate to, const Mapping& mapping) const {
    mapping.require_fit(code, element, shape);
    const Buffer x = Buffer::exactly(kToCodes ? from : to, format_of(element), shape.shape, !kToCodes);
    const Buffer q = Buffer::exactly(kToCodes ? to : from, format_of(code), stored, kToCodes);
    if (!x || !q) return false;
    kToCodes ? q.require_apart("out", x, "x") : x.require_apart("out", q, "q");
    const int64_t n = shape.elements();
    without_gil(n, [&] {
      if (n == 0) return;
      kToCodes ? mapping.quantize(shape.granularity, x.as(), element, q.as())
               : mapping.dequantize(shape.granularity, q.as(), x.as(), element);
    });
    return true;
  }
};

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

// A code width per channel; channels are the rows of a contiguous array.
struct MixedMapping {
  std::vector<Code> code;
  std::vector<int64_t> offset;
  int64_t length, bytes = 0;
  Scales scale;
  Array<const int32_t> qmin, qmax;
  bool is_f64;

  MixedMapping(std::vector<Code> codes, int64_t each, Scales s, Array<const int32_t> lo, Array<const int32_t> hi)
      : code(std::move(codes)), length(each), scale(std::move(s)), qmin(std::move(lo)), qmax(std::move(hi)) {
    const int64_t n = static_cast<int64_t>(code.size());
    product_of({n, length}, "length");
    for (const Code c : code) {
      offset.push_back(bytes);
      bytes += packed_bytes(c, length);
    }
    is_f64 = scale.view().format[0] == 'd';
    scale.require(n * (is_f64 ? 8 : 4), "scale");
    qmin.require(n * 4, "qmin"), qmax.require(n * 4, "qmax");
  }
  int64_t elements() const { return length * static_cast<int64_t>(code.size()); }
  MixedArgs args() const {
    const int64_t n = static_cast<int64_t>(code.size());
    return {n, length, code.data(), offset.data(), scale.as(), nullptr, qmin.data(), qmax.data()};
  }
  void require_fit(Element e, const Buffer& numbers, const Buffer& codes) const {
    if (is_f64 != (e == Element::f64)) throw nb::value_error("scale: its type is not the element's compute type");
    numbers.require(elements() * element_bytes(e), "x"), codes.require(bytes, "q");
  }
  void quantize(const Array<const void>& x, Element in, const Array<void>& out) const {
    require_fit(in, x, out);
    out.require_apart("out", x, "x");
    without_gil(elements(), [&] { quantize_mixed(args(), x.data(), in, out.data()); });
  }
  void dequantize(const Array<const void>& q, const Array<void>& out, Element e) const {
    require_fit(e, out, q);
    out.require_apart("out", q, "q");
    without_gil(elements(), [&] { dequantize_mixed(args(), q.data(), out.data(), e); });
  }
};

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

template <bool kToCodes>
void bind_plan(nb::module_& m, const char* name, const char* doc, const char* from) {
  using Plan = CodesPlan<kToCodes>;
  nb::class_<Plan>(m, name, doc)
      .def(nb::init<Element, Code, ScaledShape>(), "element"_a, "code"_a, "shape"_a)
      .def_prop_ro("kernel", &Plan::kernel, "The kernel that runs: family/ISA/types.")
      .def("run", &Plan::run, nb::arg(from), "out"_a, "parameters"_a,
           "False: an array is not just as described (C-contiguous, aligned, of the plan's type and shape); nothing "
           "was done.");
}

}  // namespace

void bind_quantize(nb::module_& m) {
  nb::class_<Mapping>(m, "Mapping", "How numbers become codes.");
  nb::class_<AffineMapping, Mapping>(m, "Affine", "Codes round(x / scale) + zero_point, clamped to [qmin, qmax].")
      .def(nb::init<Code, Scales, ZeroPoints, int32_t, int32_t>(), "code"_a, "scale"_a, "zero_point"_a.none(), "qmin"_a,
           "qmax"_a)
      .def_ro("first_invalid", &AffineMapping::first_invalid,
              "-1, or the first that is out of bounds: scale i as i, zero point i as -2 - i.");
  nb::class_<LogarithmicMapping, Mapping>(m, "Logarithmic", "Codes of magnitudes, found by their thresholds.")
      .def(nb::init<Code, Scales, const Scales&, const Scales&>(), "code"_a, "scale"_a, "thresholds"_a, "magnitudes"_a);
  bind_plan<true>(m, "QuantizePlan", "Numbers to codes.", "x");
  bind_plan<false>(m, "DequantizePlan", "Codes to numbers.", "q");
  nb::class_<MixedMapping>(m, "Mixed", "A code width per channel; channels are the rows of a contiguous array.")
      .def(nb::init<std::vector<Code>, int64_t, Scales, Array<const int32_t>, Array<const int32_t>>(), "codes"_a,
           "length"_a, "scale"_a, "qmin"_a, "qmax"_a)
      .def_ro("nbytes", &MixedMapping::bytes)
      .def_ro("offsets", &MixedMapping::offset)
      .def("quantize", &MixedMapping::quantize, "x"_a, "element"_a, "out"_a)
      .def("dequantize", &MixedMapping::dequantize, "q"_a, "out"_a, "element"_a);
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
