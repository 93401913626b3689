// Quantize and dequantize with given parameters.

#include "bindings/bindings.h"
#include "bindings/shapes.h"
#include "drivers/elementwise/checks.h"
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
      : Mapping(of, s), scale(std::move(s)), zero(std::move(z)), affine{of, scale.data(), data_of(zero), qmin, qmax} {
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
  std::variant<LogTable<float>, LogTable<double>> table;

  LogarithmicMapping(Code of, Scales s, const Scales& thresholds, const Scales& magnitudes)
      : Mapping(of, s),
        scale(std::move(s)),
        table(is_f64 ? made<double>(thresholds, magnitudes) : made<float>(thresholds, magnitudes)) {
    if (of != Code::s8 && of != Code::s16 && of != Code::s4 && of != Code::s2)
      throw nb::value_error("code: logarithmic codes are signed");
  }
  void quantize(const Granularity& g, const void* x, Element in, void* q) const override {
    std::visit([&]<class T>(const LogTable<T>& t) { log_quantize(g, t, code, scale.as<const T>(), x, in, q); }, table);
  }
  void dequantize(const Granularity& g, const void* q, void* y, Element out) const override {
    std::visit([&]<class T>(const LogTable<T>& t) { log_dequantize(g, t, code, scale.as<const T>(), q, y, out); },
               table);
  }

 private:
  template <class T>
  decltype(table) made(const Scales& thresholds, const Scales& magnitudes) {
    const int64_t n = thresholds.bytes() / static_cast<int64_t>(sizeof(T));
    if (n < 1) throw nb::value_error("thresholds: empty");
    thresholds.require(n * static_cast<int64_t>(sizeof(T)), "thresholds"),
        magnitudes.require(thresholds.bytes(), "magnitudes");
    const T *t = thresholds.as<const T>(), *m = magnitudes.as<const T>();
    return LogTable<T>(std::vector<T>(t, t + n), std::vector<T>(m, m + n));
  }
};

// What QuantizePlan and DequantizePlan have in common.
struct CodesPlan {
  Element element;
  Code code;
  ScaledShape shape;
  std::vector<int64_t> stored;

  CodesPlan(Element of, Code to, ScaledShape s)
      : element(of), code(to), shape(std::move(s)), stored(shape.stored(to)) {}

  Buffer numbers(Candidate array, bool writable) const {
    return Buffer::exactly(array, format_of(element), shape.shape, writable);
  }
  Buffer codes(Candidate array, bool writable) const {
    return Buffer::exactly(array, format_of(code), stored, writable);
  }
};

struct QuantizePlan : CodesPlan {
  using CodesPlan::CodesPlan;
  std::string kernel() const { return kernel_name("quantize", name_of(element), name_of(code)); }

  bool run(Candidate from, Candidate to, const Mapping& mapping) const {
    mapping.require_fit(code, element, shape);
    const Buffer x = numbers(from, false), q = codes(to, true);
    if (!x || !q) return false;
    q.require_apart("out", x, "x");
    if (const int64_t n = shape.elements())
      without_gil(n, [&] { mapping.quantize(shape.granularity, x.as(), element, q.as()); });
    return true;
  }
};

struct DequantizePlan : CodesPlan {
  using CodesPlan::CodesPlan;
  std::string kernel() const { return kernel_name("dequantize", name_of(code), name_of(element)); }

  bool run(Candidate from, Candidate to, const Mapping& mapping) const {
    mapping.require_fit(code, element, shape);
    const Buffer q = codes(from, false), y = numbers(to, true);
    if (!q || !y) return false;
    y.require_apart("out", q, "q");
    if (const int64_t n = shape.elements())
      without_gil(n, [&] { mapping.dequantize(shape.granularity, q.as(), y.as(), element); });
    return true;
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
    return {static_cast<int64_t>(code.size()),
            length,
            code.data(),
            offset.data(),
            scale.data(),
            nullptr,
            qmin.data(),
            qmax.data()};
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

template <class Plan>
void bind_plan(nb::module_& m, const char* name, const char* doc, const char* run_doc, const char* from) {
  nb::class_<Plan>(m, name, doc)
      .def(nb::init<Element, Code, ScaledShape>(), "element"_a, "code"_a, "shape"_a)
      .def_prop_ro("kernel", &Plan::kernel, "The kernel that runs: family/ISA/types.")
      .def("run", &Plan::run, nb::arg(from), "out"_a, "parameters"_a, run_doc);
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
  constexpr const char* kRun =
      "False: an array is not just as described (C-contiguous, aligned, of the plan's type and shape); nothing was "
      "done.";
  bind_plan<QuantizePlan>(m, "QuantizePlan", "Numbers to codes.", kRun, "x");
  bind_plan<DequantizePlan>(m, "DequantizePlan", "Codes to numbers.", kRun, "q");
  nb::class_<MixedMapping>(m, "Mixed", "A code width per channel; channels are the rows of a contiguous array.")
      .def(nb::init<std::vector<Code>, int64_t, Scales, Array<const int32_t>, Array<const int32_t>>(), "codes"_a,
           "length"_a, "scale"_a, "qmin"_a, "qmax"_a)
      .def_ro("nbytes", &MixedMapping::bytes)
      .def_ro("offsets", &MixedMapping::offset)
      .def("quantize", &MixedMapping::quantize, "x"_a, "element"_a, "out"_a)
      .def("dequantize", &MixedMapping::dequantize, "q"_a, "out"_a, "element"_a);
}

}  // namespace lowbit
