// lowbit._core: the native kernels over plain buffers. Types and shapes are the business of the
// Python layer; here sizes are checked once more and the GIL is let go.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <variant>

#include "base/arch.h"
#include "base/threads.h"
#include "bindings/buffer.h"
#include "bindings/combine.h"
#include "bindings/compute.h"
#include "bindings/gil.h"
#include "bindings/sizes.h"
#include "drivers/elementwise/elementwise.h"
#include "drivers/elementwise/gradients.h"
#include "kernels/binary/binary.h"
#include "kernels/codes/codes.h"
#include "kernels/combine/combine.h"
#include "kernels/dequantize/dequantize.h"
#include "kernels/dwconv/dwconv.h"
#include "kernels/fake_quant/fake_quant.h"
#include "kernels/finish/finish.h"
#include "kernels/float_dot/float_dot.h"
#include "kernels/float_groups/float_groups.h"
#include "kernels/gemm/gemm.h"
#include "kernels/groups/groups.h"
#include "kernels/pack/pack.h"
#include "kernels/pool/pool.h"
#include "kernels/quantize/quantize.h"
#include "kernels/range/range.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lowbit {

void bind_binary(nb::module_& m);

namespace {

Element element_of(int id) {
  if (id < 0 || id > 3) throw nb::value_error("element: unknown id");
  return static_cast<Element>(id);
}
Code code_of(int id) {
  if (id < 0 || id > 8) throw nb::value_error("code: unknown id");
  return static_cast<Code>(id);
}
Code logarithmic_code_of(int id) {
  const Code code = code_of(id);
  if (code != Code::s8 && code != Code::s16 && code != Code::s4 && code != Code::s2)
    throw nb::value_error("code: logarithmic codes are signed");
  return code;
}
int64_t compute_bytes(Element e) { return e == Element::f64 ? 8 : 4; }

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

  AffineSpec(int code_id, nb::handle scale_array, bool is_f64, nb::handle zero_array, int32_t lo, int32_t hi)
      : code(code_of(code_id)), scale_bytes(is_f64 ? 8 : 4), scale(scale_array, "scale"), qmin(lo), qmax(hi) {
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
  void quantize(nb::handle x_array, int element, nb::handle out_array, const Granularity* given) const {
    const Element in = element_of(element);
    const Buffer x(x_array, "x"), out(out_array, "out", true);
    const Granularity layout = layout_or_flat(given, x.bytes() / element_bytes(in));
    check(layout, in);
    const int64_t n = layout.elements();
    x.require(n * element_bytes(in), "x");
    out.require(packed_bytes(code, n), "out").require_apart("out", x, "x");
    without_gil(n, [&] { lowbit::quantize(layout, affine(), x.as(), in, out.as()); });
  }
  void dequantize(nb::handle q_array, nb::handle out_array, int element, const Granularity* given) const {
    const Element e = element_of(element);
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
  LogarithmicSpec(int code_id, nb::handle scale_array, bool is_f64, nb::handle thresholds, nb::handle magnitudes)
      : code(logarithmic_code_of(code_id)),
        scale(scale_array, "scale"),
        table(is_f64 ? decltype(table)(make<double>(thresholds, magnitudes))
                     : decltype(table)(make<float>(thresholds, magnitudes))) {}

  template <class T>
  static void check(const Granularity& layout, Element e, const Buffer& scale) {
    if (compute_bytes(e) != sizeof(T)) throw nb::value_error("scale: its type is not the element's compute type");
    scale.require(layout.scales() * static_cast<int64_t>(sizeof(T)), "scale");
  }
  void quantize(nb::handle x_array, int element, nb::handle out_array, const Granularity& layout) const {
    const Element in = element_of(element);
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
  void dequantize(nb::handle q_array, nb::handle out_array, int element, const Granularity& layout) const {
    const Element e = element_of(element);
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

  MixedSpec(const std::vector<int>& codes, int64_t length_in, nb::handle scale_array, bool is_f64,
            nb::handle zero_array, nb::handle qmin_array, nb::handle qmax_array)
      : length(length_in),
        scale_bytes(is_f64 ? 8 : 4),
        scale(scale_array, "scale"),
        zero(zero_array, "zero_point"),
        qmin(qmin_array, "qmin"),
        qmax(qmax_array, "qmax") {
    product_of({static_cast<int64_t>(codes.size()), length}, "length");
    for (const int id : codes) {
      code.push_back(code_of(id));
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
  void quantize(nb::handle x_array, int element, nb::handle out_array) const {
    const Element in = element_of(element);
    const Buffer x(x_array, "x"), out(out_array, "out", true);
    check(in);
    x.require(elements() * element_bytes(in), "x");
    out.require(bytes, "out").require_apart("out", x, "x");
    without_gil(elements(), [&] { quantize_mixed(args(), x.as(), in, out.as()); });
  }
  void dequantize(nb::handle q_array, nb::handle out_array, int element) const {
    const Element e = element_of(element);
    const Buffer q(q_array, "q"), out(out_array, "out", true);
    check(e);
    q.require(bytes, "q");
    out.require(elements() * element_bytes(e), "out").require_apart("out", q, "q");
    without_gil(elements(), [&] { dequantize_mixed(args(), q.as(), out.as(), e); });
  }
};

int64_t range_of(nb::handle x_array, int element, const Granularity& layout, nb::handle lo_array, nb::handle hi_array) {
  const Element in = element_of(element);
  const Buffer x(x_array, "x"), lo(lo_array, "lo", true), hi(hi_array, "hi", true);
  x.require(layout.elements() * element_bytes(in), "x");
  lo.require(layout.scales() * compute_bytes(in), "lo");
  hi.require(layout.scales() * compute_bytes(in), "hi");
  int64_t nan = 0;
  without_gil(layout.elements(), [&] { nan = range(layout, x.as(), in, lo.as(), hi.as()); });
  return nan;
}

void mean_abs_of(nb::handle x_array, int element, int64_t length, nb::handle out_array) {
  const Element in = element_of(element);
  const Buffer x(x_array, "x"), out(out_array, "out", true);
  const int64_t count = out.bytes() / 8;
  if (length < 1) throw nb::value_error("length: must be positive");
  x.require(product_of({length, count}, "length") * element_bytes(in), "x");
  without_gil(length * count, [&] { mean_abs(x.as(), in, length, count, out.as<double>()); });
}

std::tuple<int64_t, int64_t> quantize_dynamic_of(nb::handle x_array, int element, nb::handle out_array, int code_id,
                                                 const Granularity& layout, int32_t qmin, int32_t qmax, int32_t divisor,
                                                 nb::handle scale_array, nb::handle zero_array) {
  const Element in = element_of(element);
  const Code code = code_of(code_id);
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

void check_bits(int bits) {
  if (bits != 1 && bits != 2 && bits != 4) throw nb::value_error("bits: expected 1, 2 or 4");
}

void pack_codes(int bits, nb::handle codes_array, nb::handle out_array) {
  check_bits(bits);
  const Buffer codes(codes_array, "codes"), out(out_array, "out", true);
  out.require((codes.bytes() * bits + 7) / 8, "out");
  without_gil(codes.bytes(), [&] { pack(bits, codes.as<uint8_t>(), codes.bytes(), out.as<uint8_t>()); });
}

void unpack_codes(int bits, bool is_signed, nb::handle bytes_array, nb::handle out_array) {
  check_bits(bits);
  const Buffer bytes(bytes_array, "bytes"), out(out_array, "out", true);
  bytes.require((out.bytes() * bits + 7) / 8, "bytes");
  without_gil(out.bytes(), [&] { unpack(bits, is_signed, bytes.as<uint8_t>(), out.bytes(), out.as<uint8_t>()); });
}

// NumPy has no bfloat16, so DLPack arrays of it are lent as the uint16 of their bits.
nb::ndarray<nb::numpy, uint16_t> bfloat16_bits(nb::object object) {
  const auto array = nb::cast<nb::ndarray<nb::ro, nb::device::cpu>>(object);
  const nb::dlpack::dtype type = array.dtype();
  if (type.code != static_cast<uint8_t>(nb::dlpack::dtype_code::Bfloat) || type.bits != 16 || type.lanes != 1)
    throw nb::type_error("expected a bfloat16 array in CPU memory");
  std::vector<size_t> shape(array.ndim());
  std::vector<int64_t> strides(array.ndim());
  for (size_t i = 0; i < array.ndim(); ++i) shape[i] = array.shape(i), strides[i] = array.stride(i);
  return {const_cast<void*>(array.data()), array.ndim(), shape.data(), object, strides.data()};
}

const char* const kElementNames[] = {"f32", "f64", "f16", "bf16"};
const char* const kCodeNames[] = {"s8", "u8", "s16", "u16", "s4", "u4", "s2", "u2", "b1"};
const char* name_of(Element e) { return kElementNames[static_cast<int>(e)]; }
const char* name_of(Code c) { return kCodeNames[static_cast<int>(c)]; }

// (family, isa, from, to) for every row of every kernels.inc this CPU can run.
// -1: done. i >= 0: scale i is out of bounds; -2 - i: zero point i is. Nothing was done then.
int64_t bad_parameter(const Affine& f, Element e, int64_t scales) {
  const int64_t scale = first_bad_scale(f.scale, e == Element::f64, scales);
  if (scale >= 0) return scale;
  const int64_t zero = first_bad_zero(f.zero, f.qmin, f.qmax, scales);
  return zero >= 0 ? -2 - zero : -1;
}

struct Named {
  const Buffer& memory;
  const char* name;
};

// Refuses results that share memory with each other or with what is read.
void require_all_apart(std::initializer_list<Named> results, std::initializer_list<Named> operands) {
  for (const Named* result = results.begin(); result != results.end(); ++result) {
    for (const Named& o : operands) result->memory.require_apart(result->name, o.memory, o.name);
    for (const Named* r = results.begin(); r != result; ++r)
      result->memory.require_apart(result->name, r->memory, r->name);
  }
}

// Codes of x, or numbers of codes, under parameters given for this one call. As for fake_quant: -1, or which is bad.
int64_t convert_of(bool to_codes, int code_id, nb::handle from_array, nb::handle to_array, int element,
                   nb::handle scale_array, nb::handle zero_array, int32_t qmin, int32_t qmax,
                   const Granularity& layout) {
  const Code code = code_of(code_id);
  const Element e = element_of(element);
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

std::pair<int64_t, int64_t> quantize_from_data_of(nb::handle x_array, int element, nb::handle out_array, int code_id,
                                                  const Granularity& layout, int32_t qmin, int32_t qmax,
                                                  int32_t divisor, nb::handle scale_array, nb::handle zero_array,
                                                  nb::handle workspace_array) {
  const Element e = element_of(element);
  const Code code = code_of(code_id);
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

FakeOp fake_op_of(int id) {
  if (id < 0 || id >= kFakeOps) throw nb::value_error("op: unknown id");
  return static_cast<FakeOp>(id);
}

int64_t fake_quant_of(int op_id, nb::handle x_array, nb::handle dy_array, nb::handle out_array, int element,
                      nb::handle scale_array, nb::handle zero_array, int32_t qmin, int32_t qmax,
                      const Granularity& layout) {
  const FakeOp op = fake_op_of(op_id);
  const Element e = element_of(element);
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

int64_t fake_quant_masked_at(uintptr_t x, uintptr_t out, uintptr_t bits, int element, uintptr_t scale, uintptr_t zero,
                             int32_t qmin, int32_t qmax, const Granularity& layout) {
  const Element e = element_of(element);
  const int64_t n = layout.elements();
  if (!mask_fits(layout)) throw nb::value_error("layout: scales change within a byte of the mask");
  const Affine f{Code::s16, memory_at(scale), memory_at<int32_t>(zero), qmin, qmax};
  const int64_t bad = bad_parameter(f, e, layout.scales());
  if (bad == -1 && n > 0)
    without_gil(n, [&] { fake_quant_masked(layout, f, memory_at(x), memory_at(out), memory_at<uint8_t>(bits), e); });
  return bad;
}

void keep_where_at(uintptr_t dy, uintptr_t bits, uintptr_t out, int64_t n, int element) {
  const Element e = element_of(element);
  if (n > 0) without_gil(n, [&] { keep_where(memory_at(dy), memory_at<uint8_t>(bits), memory_at(out), n, e); });
}

// What a plan knows before it is run, so that a run with plain arrays is one call.
struct Problem {
  Granularity layout;
  Element element;
  std::vector<int64_t> shape, scale_shape;
  int32_t qmin, qmax;

  static constexpr int64_t kLookAgain = std::numeric_limits<int64_t>::min();

  Problem(const Granularity& of, int element_id, std::vector<int64_t> dims, std::vector<int64_t> scale_dims, int32_t lo,
          int32_t hi)
      : layout(of),
        element(element_of(element_id)),
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

int64_t fake_quant_learned_of(nb::handle x_array, nb::handle dy_array, nb::handle out_array, int element,
                              nb::handle scale_array, nb::handle zero_array, int32_t qmin, int32_t qmax,
                              const Granularity& layout, nb::handle workspace_array, nb::handle ds_array,
                              nb::handle dz_array) {
  const Element e = element_of(element);
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

constexpr const char* kResultNames[] = {"s32", "f32", "f16", "bf16", "s8", "u8"};

std::vector<std::tuple<std::string, std::string, std::string, std::string>> kernel_rows() {
  std::vector<std::tuple<std::string, std::string, std::string, std::string>> rows;
  for (int i = 0; i < kIsaCount; ++i) {
    const Isa isa = static_cast<Isa>(i);
    if (!isa_available(isa)) continue;
    constexpr const char* kFit[kGemmRows] = {"any codes", "pairs that fit 16 bits", "fours that fit 16 bits"};
    for (int k = 0; k < kGemmRows; ++k) rows.emplace_back("gemm", isa_name(isa), kFit[k], gemm_rows(isa)[k].name);
    for (int k = 0; k < kGroupRows; ++k)
      rows.emplace_back("groups", isa_name(isa), std::to_string(group_rows(isa)[k].bits), group_rows(isa)[k].name);
    if (isa != base_isa(isa)) continue;  // the tables of the others are those of this
    for (int k = 0; k < kFinishRows; ++k)
      rows.emplace_back("finish", isa_name(isa), "s32", kResultNames[static_cast<int>(finish_rows(isa)[k].out)]);
    for (int k = 0; k < kFloatDotRows; ++k)
      rows.emplace_back("float_dot", isa_name(isa), name_of(float_dot_rows(isa)[k].in), "");
    for (int k = 0; k < kFloatGroupRows; ++k)
      rows.emplace_back("float_groups", isa_name(isa), std::to_string(float_group_rows(isa)[k].bits), "");
    for (int k = 0; k < kQuantizeRows; ++k) {
      const QuantizeRow& r = quantize_rows(isa)[k];
      rows.emplace_back("quantize", isa_name(isa), name_of(r.in), name_of(r.code));
    }
    for (int k = 0; k < kDequantizeRows; ++k) {
      const DequantizeRow& r = dequantize_rows(isa)[k];
      rows.emplace_back("dequantize", isa_name(isa), name_of(r.code), name_of(r.out));
    }
    for (int k = 0; k < kFakeQuantRows; ++k)
      rows.emplace_back("fake_quant", isa_name(isa), name_of(fake_quant_rows(isa)[k].in), "");
    for (int k = 0; k < kRangeRows; ++k) rows.emplace_back("range", isa_name(isa), name_of(range_rows(isa)[k].in), "");
    for (int k = 0; k < kPackRows; ++k)
      rows.emplace_back("pack", isa_name(isa), std::to_string(pack_rows(isa)[k].bits), "");
    for (int k = 0; k < kBinaryKernels; ++k) {
      rows.emplace_back("binary", isa_name(isa), name_of(binary_rows(isa)[k].code), binary_rows(isa)[k].way);
      if (isa == Isa::avx512 && binary_rows_with_vpopcnt() != nullptr)
        rows.emplace_back("binary", isa_name(isa), name_of(binary_rows(isa)[k].code),
                          binary_rows_with_vpopcnt()[k].way);
    }
    for (int k = 0; k < kDwconvRows; ++k) {
      const DwconvRow& r = dwconv_rows(isa)[k];
      const std::string size = std::to_string(r.kh) + "x" + std::to_string(r.kw) + "/" + std::to_string(r.stride);
      rows.emplace_back("dwconv", isa_name(isa), name_of(r.code), r.kh == 0 ? "any" : size);
    }
    for (int k = 0; k < kCombineRows; ++k) {
      const CombineRow& r = combine_rows(isa)[k];
      rows.emplace_back("combine", isa_name(isa), r.op == CombineOp::add ? "add" : "mul", name_of(r.code));
    }
    for (int k = 0; k < kCodesRows; ++k)
      rows.emplace_back("codes", isa_name(isa), name_of(codes_rows(isa)[k].code), "");
    for (int k = 0; k < kPoolRows; ++k) rows.emplace_back("pool", isa_name(isa), name_of(pool_rows(isa)[k].code), "");
  }
  return rows;
}

std::vector<std::string> available_isas() {
  std::vector<std::string> names;
  for (int i = 0; i < kIsaCount; ++i)
    if (isa_available(static_cast<Isa>(i))) names.push_back(isa_name(static_cast<Isa>(i)));
  return names;
}

}  // namespace
}  // namespace lowbit

NB_MODULE(_core, m) {
  using namespace lowbit;
  nb::set_leak_warnings(false);  // params kept alive by a module are no leak, and no user's business
  m.doc() = "Native kernels of lowbit. Use the functions of the lowbit package instead.";

  nb::class_<Granularity>(m, "Granularity", "Which elements of a contiguous [outer, axis, inner] array share a scale.")
      .def(
          "__init__",
          [](Granularity* self, int kind, int64_t outer, int64_t axis, int64_t inner, int64_t block) {
            if (kind < 0 || kind > 2) throw nb::value_error("kind: expected 0, 1 or 2");
            product_of({outer, axis, inner}, "sizes");
            new (self) Granularity{static_cast<GranularityKind>(kind), outer, axis, inner, block_of(block)};
          },
          "kind"_a, "outer"_a, "axis"_a, "inner"_a, "block"_a)
      .def_prop_ro("elements", &Granularity::elements)
      .def_prop_ro("scales", &Granularity::scales);

  nb::class_<AffineSpec>(m, "Affine", "Linear codes: scales and zero points, lent by their arrays.")
      .def(nb::init<int, nb::handle, bool, nb::handle, int32_t, int32_t>(), "code"_a, "scale"_a, "is_f64"_a,
           "zero_point"_a.none(), "qmin"_a, "qmax"_a)
      .def("quantize", &AffineSpec::quantize, "x"_a, "element"_a, "out"_a, "layout"_a.none() = nb::none())
      .def("dequantize", &AffineSpec::dequantize, "q"_a, "out"_a, "element"_a, "layout"_a.none() = nb::none());

  nb::class_<LogarithmicSpec>(m, "Logarithmic", "Logarithmic codes: scales, thresholds and magnitudes.")
      .def(nb::init<int, nb::handle, bool, nb::handle, nb::handle>(), "code"_a, "scale"_a, "is_f64"_a, "thresholds"_a,
           "magnitudes"_a)
      .def("quantize", &LogarithmicSpec::quantize, "x"_a, "element"_a, "out"_a, "layout"_a)
      .def("dequantize", &LogarithmicSpec::dequantize, "q"_a, "out"_a, "element"_a, "layout"_a);

  nb::class_<MixedSpec>(m, "Mixed", "A code width a channel; channels are the rows of a contiguous array.")
      .def(nb::init<const std::vector<int>&, int64_t, nb::handle, bool, nb::handle, nb::handle, nb::handle>(),
           "codes"_a, "length"_a, "scale"_a, "is_f64"_a, "zero_point"_a, "qmin"_a, "qmax"_a)
      .def_prop_ro("nbytes", [](const MixedSpec& s) { return s.bytes; })
      .def_prop_ro("offsets", [](const MixedSpec& s) { return s.offset; })
      .def("quantize", &MixedSpec::quantize, "x"_a, "element"_a, "out"_a)
      .def("dequantize", &MixedSpec::dequantize, "q"_a, "out"_a, "element"_a);

  m.def("range", &range_of, "x"_a, "element"_a, "layout"_a, "lo"_a, "hi"_a,
        "Writes min and max per scale; returns the number of NaN.");
  m.def("mean_abs", &mean_abs_of, "x"_a, "element"_a, "length"_a, "out"_a,
        "Writes the mean of |x| of each run of `length` elements, in f64.");
  m.def("quantize_dynamic", &quantize_dynamic_of, "x"_a, "element"_a, "out"_a, "code"_a, "layout"_a, "qmin"_a, "qmax"_a,
        "divisor"_a, "scale"_a, "zero_point"_a.none(),
        "Range, parameters, codes and packing in one read; returns (NaN seen, scales out of bounds).");
  m.def(
      "fused_groups_fit", [](const Granularity& layout, int code) { return fused_groups_fit(layout, code_of(code)); },
      "layout"_a, "code"_a, "Whether quantize_dynamic serves this layout.");
  nb::class_<Problem>(m, "Problem", "A plan's facts: runs with plain arrays in one call.")
      .def(nb::init<const Granularity&, int, std::vector<int64_t>, std::vector<int64_t>, int32_t, int32_t>(),
           "layout"_a, "element"_a, "shape"_a, "scale_shape"_a, "qmin"_a, "qmax"_a)
      .def_prop_ro("element", [](const Problem& p) { return static_cast<int>(p.element); })
      .def("fake_quant", &Problem::fake_quant_now, "op"_a, "x"_a.none(), "dy"_a.none(), "out"_a, "scale"_a,
           "zero_point"_a.none(), "of_known_type"_a = false,
           "As the function fake_quant, with arrays of just the right kind; any other result than -1 means that "
           "nothing was done.");
  m.def("convert", &convert_of, "to_codes"_a, "code"_a, "input"_a, "output"_a, "element"_a, "scale"_a, "zero_point"_a,
        "qmin"_a, "qmax"_a, "layout"_a,
        "quantize or dequantize under parameters of this one call. Returns as fake_quant.");
  m.def("quantize_from_data", &quantize_from_data_of, "input"_a, "element"_a, "output"_a, "code"_a, "layout"_a,
        "qmin"_a, "qmax"_a, "divisor"_a, "scale"_a, "zero_point"_a.none(), "workspace"_a,
        "Parameters from the data, and its codes; returns (NaN seen, scales out of bounds).");
  m.def(
      "dynamic_workspace",
      [](const Granularity& layout, int element) { return dynamic_workspace(layout, element_of(element)); }, "layout"_a,
      "element"_a, "Bytes quantize_from_data works in.");
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
  bind_combine(m);
  m.def("pack", &pack_codes, "bits"_a, "codes"_a, "out"_a);
  m.def("unpack", &unpack_codes, "bits"_a, "is_signed"_a, "data"_a, "out"_a);
  m.def("bfloat16_bits", &bfloat16_bits, "array"_a, "The bits of a DLPack bfloat16 array, without a copy.");

  bind_gemm(m);
  bind_weight_only(m);
  bind_sketch(m);
  bind_dwconv(m);

  m.def("num_threads", &num_threads);
  m.def("set_num_threads", &set_num_threads, "n"_a);
  m.def("usable_cpus", &usable_cpus, "CPUs this process may use: affinity and cgroup quota.");
  m.def("cpu_features", &cpu_features, "Instruction sets by name, and whether this machine offers them.");
  m.def("cpu_brand", &cpu_brand);
  m.def("active_isa", [] { return std::string(isa_name(active_isa())); }, "The ISA kernels are dispatched to.");
  m.def("available_isas", &available_isas);
  m.def("max_isa", [] { return max_isa(); });
  m.def(
      "set_max_isa",
      [](const std::string& name) {
        if (!set_max_isa(name)) throw nb::value_error(("no such ISA: " + name).c_str());
      },
      "name"_a, "Caps dispatch, as LOWBIT_MAX_ISA does; an empty name lifts the cap.");
  bind_binary(m);
  m.def("kernel_rows", &kernel_rows, "(family, isa, from, to) of every kernel this CPU can run.");
}
