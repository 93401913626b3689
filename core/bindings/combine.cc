#include "drivers/elementwise/combine.h"

#include <nanobind/stl/vector.h>

#include <vector>

#include "bindings/arrays.h"
#include "bindings/bindings.h"
#include "bindings/gil.h"
#include "bindings/sizes.h"
#include "drivers/conv/pool.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lowbit {
namespace {

using Shape = std::vector<int64_t>;

Code byte_code(Code code) {
  if (code != Code::s8 && code != Code::u8) throw nb::value_error("code: expected s8 or u8");
  return code;
}

void check_codes(Code code, int32_t lo, int32_t hi) {
  const int32_t least = code == Code::s8 ? -128 : 0;
  if (lo < least || lo > hi || hi > least + 255) throw nb::value_error("codes: beyond the type, or none");
}

// A side of combine: how its codes read, lent for the call.
struct Side {
  Code code;
  float scale;
  int32_t zero;
  Shape shape;
  Buffer codes;

  Side(nb::handle array, Code code_id, double s, int32_t z, Shape of, const Shape& result, const char* name)
      : code(byte_code(code_id)), scale(static_cast<float>(s)), zero(z), shape(std::move(of)), codes(array, name) {
    codes.require(product_of(shape, "shape"), name);
    bool fits = shape.size() == result.size();
    for (size_t i = 0; fits && i < shape.size(); ++i) fits = shape[i] == 1 || shape[i] == result[i];
    if (!fits) throw nb::value_error("shape: does not spread over the result's");
  }
  CodesOperand operand() const { return {code, codes.as<const uint8_t>(), scale, zero, shape}; }
};

void combine_of(int op, nb::handle a_array, Code a_code, double a_scale, int32_t a_zero, Shape a_shape,
                nb::handle b_array, Code b_code, double b_scale, int32_t b_zero, Shape b_shape, nb::handle out_array,
                Code out_code, double scale, int32_t zero, int32_t qmin, int32_t qmax, const Shape& shape) {
  if (op != 0 && op != 1) throw nb::value_error("op: expected 0 or 1");
  const int64_t n = product_of(shape, "shape");
  const Side a(a_array, a_code, a_scale, a_zero, std::move(a_shape), shape, "a");
  const Side b(b_array, b_code, b_scale, b_zero, std::move(b_shape), shape, "b");
  const Buffer out(out_array, "out", true);
  out.require(n, "out");
  const Code code = byte_code(out_code);
  check_codes(code, qmin, qmax);
  const CodesResult q{code, out.as<uint8_t>(), static_cast<float>(scale), zero, qmin, qmax, shape};
  without_gil(n, [&] { combine(static_cast<CombineOp>(op), a.operand(), b.operand(), q); });
}

void clamp_of(Code code_id, nb::handle x_array, int32_t lo, int32_t hi, nb::handle out_array) {
  const Code code = byte_code(code_id);
  check_codes(code, lo, hi);
  const Buffer x(x_array, "x"), out(out_array, "out", true);
  out.require(x.bytes(), "out");
  without_gil(x.bytes(), [&] { clamp_codes(code, x.as<const uint8_t>(), x.bytes(), lo, hi, out.as<uint8_t>()); });
}

void lookup_of(nb::handle table_array, nb::handle x_array, int64_t length, nb::handle out_array, int64_t offset,
               int64_t stride) {
  Buffer table;
  if (!table_array.is_none()) table = Buffer(table_array, "table"), table.require(256, "table");
  const Buffer x(x_array, "x"), out(out_array, "out", true);
  if (length < 1 || x.bytes() % length != 0) throw nb::value_error("length: not that of whole rows");
  const int64_t rows = x.bytes() / length;
  const bool fits = offset >= 0 && stride >= length && offset <= stride - length && rows <= out.bytes() / stride;
  if (!fits) throw nb::value_error("out: too short");
  without_gil(x.bytes(), [&] {
    lookup_rows(table.as<const uint8_t>(), x.as<const uint8_t>(), rows, length, out.as<uint8_t>() + offset, stride);
  });
}

PoolShape pool_shape(const Shape& v) {
  if (v.size() != 12) throw nb::value_error("shape: expected 12 numbers");
  const PoolShape p{v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7], v[8], v[9], v[10], v[11]};
  const auto fits = [](int64_t size, int64_t kernel, int64_t stride, int64_t before, int64_t after) {
    return size >= 1 && kernel >= 1 && kernel <= 1 << 23 && stride >= 1 && before >= 0 && after >= 0 &&
           before < kernel && after < kernel && size + before + after >= kernel;
  };
  product_of({p.count, p.height, p.width, p.depth}, "shape");
  if (!fits(p.height, p.kernel_h, p.stride_h, p.top, p.bottom) ||
      !fits(p.width, p.kernel_w, p.stride_w, p.left, p.right) || p.kernel_h * p.kernel_w > 1 << 23)
    throw nb::value_error("shape: no such pooling");
  return p;
}
int64_t out_elements(const PoolShape& p) {
  return product_of({p.count, p.out_height(), p.out_width(), p.depth}, "shape");
}

void max_pool_of(Code code_id, nb::handle x_array, nb::handle out_array, const Shape& shape) {
  const PoolShape p = pool_shape(shape);
  const Code code = byte_code(code_id);
  const Buffer x(x_array, "x"), out(out_array, "out", true);
  x.require(p.count * p.height * p.width * p.depth, "x"), out.require(out_elements(p), "out");
  without_gil(x.bytes(), [&] { max_pool(p, code, x.as(), out.as()); });
}

void average_pool_of(Code code_id, nb::handle x_array, double scale, int32_t zero, Code out_id, nb::handle out_array,
                     double out_scale, int32_t out_zero, int32_t qmin, int32_t qmax, bool count_padding,
                     const Shape& shape) {
  const PoolShape p = pool_shape(shape);
  const Code code = byte_code(code_id), out_code = byte_code(out_id);
  check_codes(out_code, qmin, qmax);
  const Buffer x(x_array, "x"), out(out_array, "out", true);
  x.require(p.count * p.height * p.width * p.depth, "x"), out.require(out_elements(p), "out");
  const AverageParams f{
      static_cast<float>(scale), static_cast<float>(out_scale), zero, out_zero, qmin, qmax, count_padding};
  without_gil(x.bytes(), [&] { average_pool(p, f, code, x.as(), out_code, out.as()); });
}

}  // namespace

void bind_combine(nb::module_& m) {
  m.def("combine", &combine_of, "op"_a, "a"_a, "a_code"_a, "a_scale"_a, "a_zero"_a, "a_shape"_a, "b"_a, "b_code"_a,
        "b_scale"_a, "b_zero"_a, "b_shape"_a, "out"_a, "code"_a, "scale"_a, "zero"_a, "qmin"_a, "qmax"_a, "shape"_a,
        "op 0: codes of the sums of what two arrays of codes stand for; 1: of the products.");
  m.def("clamp_codes", &clamp_of, "code"_a, "x"_a, "lo"_a, "hi"_a, "out"_a);
  m.def("lookup_codes", &lookup_of, "table"_a.none(), "x"_a, "length"_a, "out"_a, "offset"_a, "stride"_a,
        "Rows of x, each byte by its place in a table of 256, into rows of out; without a table as they are.");
  m.def("max_pool", &max_pool_of, "code"_a, "x"_a, "out"_a, "shape"_a,
        "shape: count, height, width, depth, kernel, stride, and padding (top, left, bottom, right).");
  m.def("average_pool", &average_pool_of, "code"_a, "x"_a, "scale"_a, "zero"_a, "out_code"_a, "out"_a, "out_scale"_a,
        "out_zero"_a, "qmin"_a, "qmax"_a, "count_padding"_a, "shape"_a);
}

}  // namespace lowbit
