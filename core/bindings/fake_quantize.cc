// Fake quantization and its straight-through gradients.

#include <limits>

#include "bindings/bindings.h"
#include "drivers/elementwise/gradients.h"

namespace lowbit {
namespace {

// What `run` and its like return besides what invalid_parameter does: an argument is not just as described, and
// nothing was done.
constexpr int64_t kNotAsDescribed = std::numeric_limits<int64_t>::min();

// Scales and zero points of one call: arrays of the compute type and of int32, or numbers where there is one for all.
class CallParameters {
 public:
  CallParameters(NumbersCandidate scale, NumbersCandidate zero, Element element, const std::vector<int64_t>& shape) {
    if (shape.empty() && PyFloat_CheckExact(scale.object)) {
      f64_ = PyFloat_AS_DOUBLE(scale.object), f32_ = static_cast<float>(f64_);
      scale_ = element == Element::f64 ? static_cast<const void*>(&f64_) : &f32_;
    } else {
      scales_ = Buffer::exactly({scale.object}, compute_format(element), shape, false);
      scale_ = scales_.as();
    }
    if (shape.empty() && PyLong_CheckExact(zero.object)) {
      int overflow = 0;
      const long value = PyLong_AsLongAndOverflow(zero.object, &overflow);
      if (overflow != 0 || value < INT32_MIN || value > INT32_MAX) return;
      i32_ = static_cast<int32_t>(value), zero_ = &i32_;
    } else {
      zeros_ = Buffer::exactly({zero.object}, 'i', shape, false);
      zero_ = zeros_.as<const int32_t>();
    }
  }
  CallParameters(const CallParameters&) = delete;

  explicit operator bool() const { return scale_ != nullptr && zero_ != nullptr; }
  Affine affine(int32_t qmin, int32_t qmax) const { return {Code::s16, scale_, zero_, qmin, qmax}; }
  const Buffer& scales() const { return scales_; }
  const Buffer& zeros() const { return zeros_; }
  bool shares(const Buffer& out) const { return out.shares(scales_) || out.shares(zeros_); }

 private:
  Buffer scales_, zeros_;
  const void* scale_ = nullptr;
  const int32_t* zero_ = nullptr;
  float f32_ = 0;
  double f64_ = 0;
  int32_t i32_ = 0;
};

// Where the gradients of scales and zero points go.
struct LearnedGradients {
  Array<Real> scale, zero;
  Array<void> workspace;
};

struct FakeQuantizePlan {
  Element element;
  ScaledShape shape;
  int32_t qmin, qmax;

  std::string kernel() const { return kernel_name("fake_quant", name_of(element), ""); }
  int64_t workspace_bytes() const { return learned_workspace(shape.granularity) * 8; }
  bool has_mask() const { return mask_fits(shape.granularity); }
  int64_t mask_bytes() const { return (shape.elements() + 7) / 8; }

  Buffer lent(Candidate array, bool writable = false) const {
    return Buffer::exactly(array, format_of(element), shape.shape, writable);
  }

  // work(affine), unless a scale or zero point is out of bounds.
  template <class Work>
  int64_t checked(const Affine& affine, Work&& work) const {
    const int64_t invalid = invalid_parameter(affine, element == Element::f64, shape.scales());
    if (invalid == -1) without_gil(shape.elements(), [&] { work(affine); });
    return invalid;
  }

  int64_t apply(FakeOp op, const Candidate* from, const Candidate* gradient, Candidate to, NumbersCandidate scale,
                NumbersCandidate zero) const {
    const Buffer out = lent(to, true);
    if (!out) return kNotAsDescribed;
    Buffer x, dy;
    if (from != nullptr && !(x = lent(*from))) return kNotAsDescribed;
    if (gradient != nullptr && !(dy = lent(*gradient))) return kNotAsDescribed;
    const CallParameters given(scale, zero, element, shape.scale_shape);
    if (!given || out.overlaps(x) || out.overlaps(dy) || given.shares(out)) return kNotAsDescribed;
    return checked(given.affine(qmin, qmax), [&](const Affine& f) {
      if (shape.elements() > 0) fake_quant(op, shape.granularity, f, x.as(), dy.as(), out.as(), element);
    });
  }
  int64_t run(Candidate x, Candidate out, NumbersCandidate scale, NumbersCandidate zero) const {
    return apply(FakeOp::fake, &x, nullptr, out, scale, zero);
  }
  template <FakeOp op>
  int64_t backward(Candidate dy, Candidate x, Candidate out, NumbersCandidate scale, NumbersCandidate zero) const {
    return apply(op, &x, &dy, out, scale, zero);
  }
  int64_t dequantize_backward(Candidate dy, Candidate out, NumbersCandidate scale, NumbersCandidate zero) const {
    return apply(FakeOp::scaled, nullptr, &dy, out, scale, zero);
  }

  int64_t learned_backward(Candidate gradient, Candidate from, Candidate to, NumbersCandidate scale,
                           NumbersCandidate zero_point, const LearnedGradients& made) const {
    const Buffer dy = lent(gradient), x = lent(from), out = lent(to, true);
    const CallParameters given(scale, zero_point, element, shape.scale_shape);
    if (!dy || !x || !out || !given || out.overlaps(x) || out.overlaps(dy)) return kNotAsDescribed;
    const int64_t bytes = shape.scales() * compute_bytes(element);
    made.scale.require(bytes, "d_scale"), made.zero.require(bytes, "d_zero_point");
    if (made.workspace.bytes() < workspace_bytes()) throw nb::value_error("workspace: too small");
    require_all_apart({{out, "d_input"}}, {{given.scales(), "scale"}, {given.zeros(), "zero_point"}});
    require_all_apart(
        {{made.scale, "d_scale"}, {made.zero, "d_zero_point"}, {made.workspace, "workspace"}},
        {{x, "input"}, {dy, "d_output"}, {out, "d_input"}, {given.scales(), "scale"}, {given.zeros(), "zero_point"}});
    return checked(given.affine(qmin, qmax), [&](const Affine& f) {
      fake_quant_learned(shape.granularity, f, x.as(), dy.as(), out.as(), element, made.workspace.as<double>(),
                         made.scale.as(), made.zero.as());
    });
  }

  int64_t run_masked(Address x, Address out, Address bits, Address scale, Address zero) const {
    if (!has_mask()) throw nb::value_error("granularity: scales change within a byte of the mask");
    return checked({Code::s16, memory_at(scale), memory_at<int32_t>(zero), qmin, qmax}, [&](const Affine& f) {
      if (shape.elements() > 0)
        fake_quant_masked(shape.granularity, f, memory_at(x), memory_at(out), memory_at<uint8_t>(bits), element);
    });
  }
  void masked_backward(Address dy, Address bits, Address out) const {
    if (const int64_t n = shape.elements())
      without_gil(n, [&] { keep_where(memory_at(dy), memory_at<uint8_t>(bits), memory_at(out), n, element); });
  }
};

}  // namespace

void bind_fake_quantize(nb::module_& m) {
  const auto dy = "dy"_a.none(), x = "x"_a.none(), out = "out"_a.none(), scale = "scale"_a.none(),
             zero = "zero_point"_a.none();
  nb::class_<LearnedGradients>(m, "LearnedGradients", "Where the gradients of scales and zero points go.")
      .def(nb::init<Array<Real>, Array<Real>, Array<void>>(), "scale"_a, "zero_point"_a, "workspace"_a);
  nb::class_<FakeQuantizePlan>(m, "FakeQuantizePlan",
                               "dequantize(quantize(x)) and its gradients. Methods return -1; or the first parameter "
                               "that is out of bounds, scale i as i, zero point i as -2 - i; or NOT_AS_DESCRIBED where "
                               "an array is not C-contiguous, aligned, of the plan's type and shape. Unless they "
                               "return -1, nothing was done.")
      .def(nb::init<Element, ScaledShape, int32_t, int32_t>(), "element"_a, "shape"_a, "qmin"_a, "qmax"_a)
      .def_ro("element", &FakeQuantizePlan::element)
      .def_prop_ro("kernel", &FakeQuantizePlan::kernel, "The kernel that runs: family/ISA/types.")
      .def_prop_ro("workspace_bytes", &FakeQuantizePlan::workspace_bytes, "Bytes learned_backward works in.")
      .def_prop_ro("has_mask", &FakeQuantizePlan::has_mask, "Whether scales hold for whole bytes of a mask.")
      .def_prop_ro("mask_bytes", &FakeQuantizePlan::mask_bytes)
      .def("run", &FakeQuantizePlan::run, x, out, scale, zero)
      .def("backward", &FakeQuantizePlan::backward<FakeOp::fake_backward>, dy, x, out, scale, zero,
           "dy where the code was not clipped, else 0.")
      .def("quantize_backward", &FakeQuantizePlan::backward<FakeOp::quantize_backward>, dy, x, out, scale, zero,
           "dy / scale where the code was not clipped, else 0.")
      .def("dequantize_backward", &FakeQuantizePlan::dequantize_backward, dy, out, scale, zero, "dy * scale.")
      .def("learned_backward", &FakeQuantizePlan::learned_backward, dy, x, out, scale, zero, "gradients"_a,
           "The gradients by x, scale and zero point.")
      .def("run_masked", &FakeQuantizePlan::run_masked, "x"_a, "out"_a, "bits"_a, "scale"_a, "zero_point"_a,
           "As run, and a bit per element that was not clipped, by addresses of contiguous memory.")
      .def("masked_backward", &FakeQuantizePlan::masked_backward, "dy"_a, "bits"_a, "out"_a,
           "dy where run_masked set a bit, else 0, by addresses.");
  m.attr("NOT_AS_DESCRIBED") = kNotAsDescribed;
}

}  // namespace lowbit
