// Fake quantization and its gradients.
#include <nanobind/stl/vector.h>

#include <limits>
#include <utility>
#include <vector>

#include "bindings/arrays.h"
#include "bindings/bindings.h"
#include "bindings/gil.h"
#include "bindings/parameters.h"
#include "bindings/sizes.h"
#include "drivers/elementwise/gradients.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lowbit {
namespace {

FakeOp fake_op_of(int id) {
  if (id < 0 || id >= kFakeOps) throw nb::value_error("op: unknown id");
  return static_cast<FakeOp>(id);
}

int64_t fake_quant_of(int op_id, nb::handle x_array, nb::handle dy_array, nb::handle out_array, Element element,
                      nb::handle scale_array, nb::handle zero_array, int32_t qmin, int32_t qmax,
                      const Granularity& layout) {
  const FakeOp op = fake_op_of(op_id);
  const Element e = element;
  const int64_t n = layout.elements(), bytes = n * element_bytes(e), scales = layout.scales();
  Buffer x, dy;
  if (op != FakeOp::scaled) x = Buffer(x_array, "x"), x.require(bytes, "x");
  if (op != FakeOp::fake) dy = Buffer(dy_array, "dy"), dy.require(bytes, "dy");
  const Buffer out(out_array, "out", true), scale(scale_array, "scale"), zero(zero_array, "zero_point");
  out.require(bytes, "out");
  scale.require(scales * compute_bytes(e), "scale");
  zero.require(scales * 4, "zero_point");
  require_all_apart({{out, op == FakeOp::fake ? "output" : "d_input"}}, {{scale, "scale"}, {zero, "zero_point"}});
  const Affine f{Code::s16, scale.as(), zero.as<int32_t>(), qmin, qmax};
  const int64_t bad = bad_parameter(f, e, scales);
  if (bad == -1 && n > 0) without_gil(n, [&] { fake_quant(op, layout, f, x.as(), dy.as(), out.as(), e); });
  return bad;
}

// Memory of torch tensors comes by its address: a view of it as an array takes longer to make than a small call. The
// caller has seen to it that there is as much as the layout says.
template <class T = void>
T* memory_at(uintptr_t address) {
  return reinterpret_cast<T*>(address);
}

int64_t fake_quant_masked_at(uintptr_t x, uintptr_t out, uintptr_t bits, Element element, uintptr_t scale,
                             uintptr_t zero, int32_t qmin, int32_t qmax, const Granularity& layout) {
  const Element e = element;
  const int64_t n = layout.elements();
  if (!mask_fits(layout)) throw nb::value_error("layout: scales change within a byte of the mask");
  const Affine f{Code::s16, memory_at(scale), memory_at<int32_t>(zero), qmin, qmax};
  const int64_t bad = bad_parameter(f, e, layout.scales());
  if (bad == -1 && n > 0)
    without_gil(n, [&] { fake_quant_masked(layout, f, memory_at(x), memory_at(out), memory_at<uint8_t>(bits), e); });
  return bad;
}

void keep_where_at(uintptr_t dy, uintptr_t bits, uintptr_t out, int64_t n, Element element) {
  const Element e = element;
  if (n > 0) without_gil(n, [&] { keep_where(memory_at(dy), memory_at<uint8_t>(bits), memory_at(out), n, e); });
}

// What a plan knows before it is run, so that a run with plain arrays is one call.
struct Problem {
  Granularity layout;
  Element element;
  std::vector<int64_t> shape, scale_shape;
  int32_t qmin, qmax;

  static constexpr int64_t kLookAgain = std::numeric_limits<int64_t>::min();

  Problem(const Granularity& of, Element element_id, std::vector<int64_t> dims, std::vector<int64_t> scale_dims,
          int32_t lo, int32_t hi)
      : layout(of),
        element(element_id),
        shape(std::move(dims)),
        scale_shape(std::move(scale_dims)),
        qmin(lo),
        qmax(hi) {
    if (product_of(shape, "shape") != layout.elements() || product_of(scale_shape, "scale_shape") != layout.scales())
      throw nb::value_error("shape: not the layout's number of elements or scales");
  }

  // As the function fake_quant; kLookAgain: an argument needs a closer look, and nothing was done. bfloat16 comes as
  // its bits, or as arrays of a type without a format, which the caller has looked at (`of_known_type`).
  int64_t fake_quant_now(int op_id, nb::handle x_array, nb::handle dy_array, nb::handle out_array,
                         nb::handle scale_value, nb::handle zero_value, bool of_known_type) const {
    const FakeOp op = fake_op_of(op_id);
    const char format = of_known_type ? '\0' : "fdeH"[static_cast<int>(element)];
    const Buffer out = Buffer::exactly(out_array, format, shape, true);
    if (!out) return kLookAgain;
    Buffer x, dy, scale, zero;
    if (op != FakeOp::scaled && !(x = Buffer::exactly(x_array, format, shape, false))) return kLookAgain;
    if (op != FakeOp::fake && !(dy = Buffer::exactly(dy_array, format, shape, false))) return kLookAgain;
    if (out.overlaps(x) || out.overlaps(dy)) return kLookAgain;
    // Numbers will do where there is one for all.
    float scale_f32 = 0;
    double scale_f64 = 0;
    int32_t zero_i32 = 0;
    Affine f{Code::s16, nullptr, nullptr, qmin, qmax};
    if (scale_shape.empty() && PyFloat_CheckExact(scale_value.ptr())) {
      scale_f64 = PyFloat_AS_DOUBLE(scale_value.ptr());
      scale_f32 = static_cast<float>(scale_f64);
      f.scale = element == Element::f64 ? static_cast<const void*>(&scale_f64) : &scale_f32;
    } else {
      scale = Buffer::exactly(scale_value, element == Element::f64 ? 'd' : 'f', scale_shape, false);
      if (!scale) return kLookAgain;
      f.scale = scale.as();
    }
    if (scale_shape.empty() && PyLong_CheckExact(zero_value.ptr())) {
      int overflow = 0;
      const long value = PyLong_AsLongAndOverflow(zero_value.ptr(), &overflow);
      if (overflow != 0 || value < INT32_MIN || value > INT32_MAX) return kLookAgain;
      zero_i32 = static_cast<int32_t>(value);
      f.zero = &zero_i32;
    } else {
      zero = Buffer::exactly(zero_value, 'i', scale_shape, false);
      if (!zero) return kLookAgain;
      f.zero = zero.as<int32_t>();
    }
    if (out.shares(scale) || out.shares(zero)) return kLookAgain;
    const int64_t bad = bad_parameter(f, element, layout.scales()), n = layout.elements();
    if (bad == -1 && n > 0) without_gil(n, [&] { fake_quant(op, layout, f, x.as(), dy.as(), out.as(), element); });
    return bad;
  }
};

int64_t fake_quant_learned_of(nb::handle x_array, nb::handle dy_array, nb::handle out_array, Element element,
                              nb::handle scale_array, nb::handle zero_array, int32_t qmin, int32_t qmax,
                              const Granularity& layout, nb::handle workspace_array, nb::handle ds_array,
                              nb::handle dz_array) {
  const Element e = element;
  const int64_t n = layout.elements(), bytes = n * element_bytes(e), scales = layout.scales();
  const Buffer x(x_array, "x"), dy(dy_array, "dy"), out(out_array, "out", true), scale(scale_array, "scale"),
      zero(zero_array, "zero_point"), workspace(workspace_array, "workspace", true), ds(ds_array, "d_scale", true),
      dz(dz_array, "d_zero_point", true);
  x.require(bytes, "x"), dy.require(bytes, "dy"), out.require(bytes, "out");
  scale.require(scales * compute_bytes(e), "scale"), zero.require(scales * 4, "zero_point");
  ds.require(scales * compute_bytes(e), "d_scale"), dz.require(scales * compute_bytes(e), "d_zero_point");
  if (workspace.bytes() < learned_workspace(layout) * 8) throw nb::value_error("workspace: too small");
  require_all_apart({{out, "d_input"}}, {{scale, "scale"}, {zero, "zero_point"}});
  require_all_apart({{ds, "d_scale"}, {dz, "d_zero_point"}, {workspace, "workspace"}},
                    {{x, "input"}, {dy, "d_output"}, {out, "d_input"}, {scale, "scale"}, {zero, "zero_point"}});
  const Affine f{Code::s16, scale.as(), zero.as<int32_t>(), qmin, qmax};
  const int64_t bad = bad_parameter(f, e, scales);
  if (bad == -1)
    without_gil(n, [&] {
      fake_quant_learned(layout, f, x.as(), dy.as(), out.as(), e, workspace.as<double>(), ds.as(), dz.as());
    });
  return bad;
}

}  // namespace

void bind_fake_quantize(nb::module_& m) {
  nb::class_<Problem>(m, "Problem", "A plan's facts: runs with plain arrays in one call.")
      .def(nb::init<const Granularity&, Element, std::vector<int64_t>, std::vector<int64_t>, int32_t, int32_t>(),
           "layout"_a, "element"_a, "shape"_a, "scale_shape"_a, "qmin"_a, "qmax"_a)
      .def_prop_ro("element", [](const Problem& p) { return p.element; })
      .def("fake_quant", &Problem::fake_quant_now, "op"_a, "x"_a.none(), "dy"_a.none(), "out"_a, "scale"_a,
           "zero_point"_a.none(), "of_known_type"_a = false,
           "As the function fake_quant, with arrays of just the right kind; any other result than -1 means that "
           "nothing was done.");
  m.def(
      "fake_quant", &fake_quant_of, "op"_a, "x"_a.none(), "dy"_a.none(), "out"_a, "element"_a, "scale"_a,
      "zero_point"_a, "qmin"_a, "qmax"_a, "layout"_a,
      "op 0 fake_quantize, 1 its gradient, 2 quantize's, 3 dequantize's. Returns -1, or which scale (i) or zero point "
      "(-2 - i) is out of bounds; then nothing was done.");
  m.def(
      "mask_fits", [](const Granularity& layout) { return mask_fits(layout); }, "layout"_a,
      "Whether fake_quant_masked serves this layout.");
  m.def("fake_quant_masked_at", &fake_quant_masked_at, "x"_a, "out"_a, "bits"_a, "element"_a, "scale"_a, "zero_point"_a,
        "qmin"_a, "qmax"_a, "layout"_a,
        "fake_quantize, and a bit for each element that was not clipped, by addresses. Returns as fake_quant.");
  m.def("keep_where_at", &keep_where_at, "dy"_a, "bits"_a, "out"_a, "n"_a, "element"_a,
        "dy where a bit is set, else 0, by addresses.");
  m.def("fake_quant_learned", &fake_quant_learned_of, "x"_a, "dy"_a, "out"_a, "element"_a, "scale"_a, "zero_point"_a,
        "qmin"_a, "qmax"_a, "layout"_a, "workspace"_a, "d_scale"_a, "d_zero_point"_a,
        "Gradients by x, scale and zero point. Returns as fake_quant.");
  m.def(
      "learned_workspace", [](const Granularity& layout) { return learned_workspace(layout) * 8; }, "layout"_a,
      "Bytes fake_quant_learned works in.");
}

}  // namespace lowbit
