// Sums, products, bounds, lookups and pooling of codes; codes of fewer than 8 bits, and arrays NumPy does not know.
#include "drivers/elementwise/elementwise.h"

#include <nanobind/ndarray.h>

#include "bindings/bindings.h"
#include "drivers/conv/pool.h"
#include "drivers/elementwise/combine.h"

namespace lowbit {
namespace {

using Shape = std::vector<int64_t>;

// The shape of an operand with as many dimensions as the result, which it is broadcast to.
Shape broadcast_shape(const Buffer& operand, const Buffer& out, const char* name) {
  const Py_buffer &x = operand.view(), &y = out.view();
  Shape shape(y.ndim, 1);
  bool fits = x.ndim <= y.ndim;
  for (int i = 0; fits && i < x.ndim; ++i) {
    const int64_t size = x.shape[i], wanted = y.shape[y.ndim - x.ndim + i];
    shape[y.ndim - x.ndim + i] = size;
    fits = size == 1 || size == wanted;
  }
  if (!fits) refuse(name, "does not broadcast to the shape of out");
  return shape;
}

CodesOperand operand(const Array<const void>& codes, const CodeParams& p, const Shape& shape) {
  return {p.code, static_cast<const uint8_t*>(codes.data()), p.scale, p.zero_point, shape};
}

struct CombinePlan {
  AddMulOp op;
  CodeParams a_params, b_params, out_params;

  void run(const Array<const void>& a, const Array<const void>& b, const Array<void>& out) const {
    if (a.view().itemsize != 1 || b.view().itemsize != 1 || out.view().itemsize != 1)
      throw nb::value_error("a, b, out: expected one byte per element");
    const Shape shape = broadcast_shape(out, out, "out"), a_shape = broadcast_shape(a, out, "a"),
                b_shape = broadcast_shape(b, out, "b");
    const CodesOperand x = operand(a, a_params, a_shape), y = operand(b, b_params, b_shape);
    const CodeParams& p = out_params;
    const CodesResult q{p.code, static_cast<uint8_t*>(out.data()), p.scale, p.zero_point, p.qmin, p.qmax, shape};
    without_gil(out.bytes(), [&] { combine(op, x, y, q); });
  }
};

void clamp_of(Code code, const Array<const void>& x, int32_t lo, int32_t hi, const Array<void>& out) {
  check_codes(code, lo, hi);
  out.require(x.bytes(), "out");
  without_gil(x.bytes(), [&] {
    clamp_codes(code, static_cast<const uint8_t*>(x.data()), x.bytes(), lo, hi, static_cast<uint8_t*>(out.data()));
  });
}

void lookup_of(const std::optional<Array<const uint8_t>>& table, const Array<const void>& x, int64_t length,
               const Array<void>& out, int64_t offset, int64_t stride) {
  require(table, 256, "table");
  if (length < 1 || x.bytes() % length != 0) throw nb::value_error("length: not that of whole rows");
  const int64_t rows = x.bytes() / length;
  const bool fits = offset >= 0 && stride >= length && offset <= stride - length && rows <= out.bytes() / stride;
  if (!fits) throw nb::value_error("out: too short");
  without_gil(x.bytes(), [&] {
    lookup_rows(data_of(table), static_cast<const uint8_t*>(x.data()), rows, length,
                static_cast<uint8_t*>(out.data()) + offset, stride);
  });
}

const Window& pooling(const Window& w) {
  constexpr int64_t kMostPlaces = 1 << 23;  // whose codes a 32-bit sum holds
  const bool fits = w.height > 0 && w.width > 0 && w.kernel_h <= kMostPlaces / w.kernel_w && w.top < w.kernel_h &&
                    w.bottom < w.kernel_h && w.left < w.kernel_w && w.right < w.kernel_w;
  if (!fits || w.dilation_h != 1 || w.dilation_w != 1 || w.groups != 1)
    throw nb::value_error("window: no such pooling");
  product_of({w.pixels(), w.channels}, "window");
  return w;
}

class MaxPoolPlan {
 public:
  MaxPoolPlan(const Window& window, Code code) : window_(pooling(window)), code_(byte_code(code)) {}
  void run(const Array<const void>& x, const Array<void>& out) const {
    x.require(window_.inputs(), "x"), out.require(window_.pixels() * window_.channels, "out");
    without_gil(x.bytes(), [&] { max_pool(window_, code_, x.data(), out.data()); });
  }

 private:
  Window window_;
  Code code_;
};

class AveragePoolPlan {
 public:
  AveragePoolPlan(const Window& window, const CodeParams& x, const CodeParams& out, bool count_padding)
      : window_(pooling(window)),
        code_(x.code),
        out_code_(out.code),
        params_{x.scale, out.scale, x.zero_point, out.zero_point, out.qmin, out.qmax, count_padding} {}
  void run(const Array<const void>& x, const Array<void>& out) const {
    x.require(window_.inputs(), "x"), out.require(window_.pixels() * window_.channels, "out");
    without_gil(x.bytes(), [&] { average_pool(window_, params_, code_, x.data(), out_code_, out.data()); });
  }

 private:
  Window window_;
  Code code_, out_code_;
  AverageParams params_;
};

void require_packed(int bits, const Buffer& packed, int64_t codes, const char* name) {
  if (bits != 1 && bits != 2 && bits != 4) throw nb::value_error("bits: expected 1, 2 or 4");
  packed.require((codes * bits + 7) / 8, name);
}

void pack_codes(int bits, const Array<const uint8_t>& codes, const Array<uint8_t>& out) {
  require_packed(bits, out, codes.size(), "out");
  without_gil(codes.size(), [&] { pack(bits, codes.data(), codes.size(), out.data()); });
}

void unpack_codes(int bits, bool is_signed, const Array<const uint8_t>& data, const Array<uint8_t>& out) {
  require_packed(bits, data, out.size(), "data");
  without_gil(out.size(), [&] { unpack(bits, is_signed, data.data(), out.size(), out.data()); });
}

// NumPy has no bfloat16, so DLPack arrays of it are lent as the uint16 of their bits.
nb::ndarray<nb::numpy, uint16_t> bfloat16_bits(const nb::ndarray<nb::ro, nb::device::cpu>& array) {
  const nb::dlpack::dtype type = array.dtype();
  if (type.code != static_cast<uint8_t>(nb::dlpack::dtype_code::Bfloat) || type.bits != 16 || type.lanes != 1)
    throw nb::type_error("expected a bfloat16 array in CPU memory");
  using Given = nb::ndarray<nb::ro, nb::device::cpu>;
  const nb::capsule owner(new Given(array), [](void* p) noexcept { delete static_cast<Given*>(p); });
  std::vector<size_t> shape(array.ndim());
  std::vector<int64_t> strides(array.ndim());
  for (size_t i = 0; i < array.ndim(); ++i) shape[i] = array.shape(i), strides[i] = array.stride(i);
  return {const_cast<void*>(array.data()), array.ndim(), shape.data(), owner, strides.data()};
}

}  // namespace

void bind_elementwise(nb::module_& m) {
  bind_enum<AddMulOp>(m, "CombineOp", "What two arrays are combined by.", {"add", "mul"});
  nb::class_<CombinePlan>(m, "CombinePlan", "Codes of the sum or product of two arrays of codes.")
      .def(nb::init<AddMulOp, const CodeParams&, const CodeParams&, const CodeParams&>(), "op"_a, "a"_a, "b"_a, "out"_a)
      .def("run", &CombinePlan::run, "a"_a, "b"_a, "out"_a, "a and b are broadcast to the shape of out.");
  m.def("clamp_codes", &clamp_of, "code"_a, "x"_a, "lo"_a, "hi"_a, "out"_a);
  m.def("lookup_codes", &lookup_of, "table"_a.none(), "x"_a, "length"_a, "out"_a, "offset"_a, "stride"_a,
        "Rows of x, each byte looked up in a table of 256, into rows of out; without a table a copy.");
  nb::class_<MaxPoolPlan>(m, "MaxPoolPlan", "The greatest code of each window.")
      .def(nb::init<const Window&, Code>(), "window"_a, "code"_a)
      .def("run", &MaxPoolPlan::run, "x"_a, "out"_a);
  nb::class_<AveragePoolPlan>(m, "AveragePoolPlan", "The mean of each window.")
      .def(nb::init<const Window&, const CodeParams&, const CodeParams&, bool>(), "window"_a, "x"_a, "out"_a,
           "count_padding"_a)
      .def("run", &AveragePoolPlan::run, "x"_a, "out"_a);
  m.def("pack", &pack_codes, "bits"_a, "codes"_a, "out"_a, "Packs codes, one a byte, the first in the low bits.");
  m.def("unpack", &unpack_codes, "bits"_a, "is_signed"_a, "data"_a, "out"_a, "The inverse of pack.");
  m.def("bfloat16_bits", &bfloat16_bits, "array"_a,
        nb::sig("def bfloat16_bits(array: typing.Any) -> numpy.typing.NDArray[numpy.uint16]"),
        "The bits of a DLPack bfloat16 array, without a copy.");
}

}  // namespace lowbit
