// Integer products: packed matrices, and a call that multiplies and finishes.
#include "drivers/gemm/gemm.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <chrono>
#include <memory>

#include "base/threads.h"
#include "bindings/arrays.h"
#include "bindings/bindings.h"
#include "bindings/epilogue.h"
#include "bindings/float_layer.h"
#include "bindings/gil.h"
#include "bindings/sizes.h"
#include "drivers/conv/conv.h"
#include "drivers/gemm/float_groups.h"
#include "drivers/gemm/groups.h"
#include "drivers/gemm/linear.h"
#include "drivers/gemm/probe.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lowbit {
namespace {

std::unique_ptr<PackedMatrix> pack_matrix(nb::handle codes, bool is_signed, int64_t k, int64_t n, bool transposed,
                                          nb::handle zero_points) {
  const Buffer b(codes, "codes"), zero = optional(zero_points, "zero_point");
  b.require(product_of({k, n}, "k, n"), "codes");
  const int64_t zeros = zero ? (is_many(zero, 4, n, "zero_point") ? n : 1) : 0;
  const GilReleased released;
  return std::make_unique<PackedMatrix>(b.as<uint8_t>(), is_signed, k, n, transposed ? 1 : n, transposed ? k : 1,
                                        zero.as<int32_t>(), zeros);
}

template <class Packed>
void unpack_of(const Packed& packed, nb::handle output) {
  const Buffer out(output, "out", true);
  out.require(packed.k * packed.n, "out");
  const GilReleased released;
  packed.unpack(out.as<uint8_t>());
}

void multiply(nb::handle codes, bool is_signed, int64_t m, nb::handle zero_points, const PackedMatrix& b,
              const EpilogueSpec& spec, nb::handle output, bool wide) {
  const Buffer a(codes, "a"), zero(zero_points, "a_zero_point"), out(output, "out", true);
  a.require(product_of({m, b.k}, "m"), "a");
  const bool deep = wide || b.k > kExactK;
  out.require(product_of({m, b.n}, "m") * (spec.result == Result::s32 && deep ? 8 : result_bytes(spec.result)), "out");
  CodeRows rows{};
  rows.rows = m, rows.is_signed = is_signed, rows.zero = zero.as<int32_t>();
  rows.zero_per_row = is_many(zero, 4, m, "a_zero_point");
  rows.codes = a.as<uint8_t>(), rows.stride = b.k;
  Epilogue f = spec.epilogue(m, b.n);
  f.wide = wide;
  const GilReleased released;
  gemm(rows, b, f, out.as(), b.n);
}

void convolve_of(nb::handle image, bool is_signed, int32_t zero, const std::vector<int64_t>& v, const PackedMatrix& w,
                 const EpilogueSpec& spec, nb::handle output, int64_t first_out, int64_t stride) {
  if (v.size() != 16) throw nb::value_error("geometry: expected 16 numbers");
  const ConvShape s{v[0],
                    v[1],
                    v[2],
                    v[3],
                    v[4],
                    v[5],
                    v[6],
                    v[7],
                    v[8],
                    v[9],
                    v[10],
                    v[11],
                    v[12],
                    v[13],
                    v[14],
                    v[15],
                    v[4] > 0 ? w.k / v[4] : 0};
  for (const int64_t size : v) product_of({size}, "geometry");
  product_of({s.kernel_h, s.dilation_h}, "geometry"), product_of({s.kernel_w, s.dilation_w}, "geometry");
  product_of({s.out_h, s.stride_h}, "geometry"), product_of({s.out_w, s.stride_w}, "geometry");
  product_of({s.kernel_w, s.group_channels}, "geometry");
  if (s.depth() != w.k || s.line < s.run()) throw nb::value_error("w: its depth is not the patch's");
  if (s.first_channel + s.group_channels > s.channels) throw nb::value_error("geometry: group out of bounds");
  if (first_out < 0 || first_out > stride - w.n) throw nb::value_error("out: columns out of bounds");
  const Buffer x(image, "x"), out(output, "out", true);
  x.require(product_of({s.batch, s.height, s.width, s.channels}, "geometry"), "x");
  const bool deep = spec.result == Result::s32 && w.k > kExactK;
  const int64_t item = deep ? 8 : result_bytes(spec.result);
  out.require(product_of({s.batch, s.out_h, s.out_w, stride}, "geometry") * item, "out");
  Epilogue f = spec.epilogue(1, w.n);
  f.scale_per_row = false;  // one for all pixels
  const GilReleased released;
  convolve(s, x.as<uint8_t>(), is_signed, zero, w, f, out.as<char>() + first_out * item, stride);
}

void transpose_of(nb::handle input, nb::handle output, int64_t batch, int64_t rows, int64_t columns, int64_t item) {
  const Buffer from(input, "from"), to(output, "to", true);
  if (item != 1 && item != 2 && item != 4 && item != 8) throw nb::value_error("item: expected 1, 2, 4 or 8");
  const int64_t bytes = product_of({batch, rows, columns}, "sizes") * item;
  from.require(bytes, "from"), to.require(bytes, "to");
  const GilReleased released;
  transpose(from.as(), to.as(), batch, rows, columns, item);
}

std::unique_ptr<PackedGroups> pack_groups(nb::handle code_array, int64_t k, int64_t n, int bits, int64_t block,
                                          nb::handle scales, nb::handle zeros, int32_t zero_all) {
  const Buffer codes(code_array, "codes"), scale(scales, "scale"), zero = optional(zeros, "zero_point");
  if (bits != 4 && bits != 2) throw nb::value_error("bits: expected 4 or 2");
  codes.require(product_of({k, n}, "k, n"), "codes");
  block = block_of(block);
  const int64_t groups = (k + block - 1) / block;
  scale.require(4 * n * groups, "scale");
  if (zero) zero.require(n * groups, "zero_point");
  const GilReleased released;
  return std::make_unique<PackedGroups>(codes.as<uint8_t>(), k, n, bits, block, scale.as<float>(), zero.as<uint8_t>(),
                                        zero_all);
}

FloatEpilogue float_epilogue(const EpilogueSpec& spec, int64_t n) {
  if (spec.result < Result::f32 || spec.result > Result::bf16) throw nb::value_error("result: expected floats");
  if (spec.bias) spec.bias.require(4 * n, "bias");
  return {spec.result, spec.bias.as<float>(), spec.floor, spec.ceiling};
}

void multiply_groups(nb::handle codes, int64_t m, nb::handle scales, const PackedGroups& b, const EpilogueSpec& spec,
                     nb::handle output) {
  const Buffer a(codes, "a"), scale(scales, "a_scale"), out(output, "out", true);
  a.require(product_of({m, b.k}, "m"), "a");
  const bool per_group = scale.bytes() != 4 * m;
  if (per_group) scale.require(4 * m * b.groups, "a_scale");
  out.require(product_of({m, b.n}, "m") * result_bytes(spec.result), "out");
  const FloatEpilogue f = float_epilogue(spec, b.n);
  const GilReleased released;
  group_matmul(a.as<int8_t>(), m, scale.as<float>(), per_group, b, f, out.as());
}

GroupSizes sizes_of(int64_t m, int64_t n, int64_t k, int bits, int64_t block) {
  if (bits != 4 && bits != 2) throw nb::value_error("bits: expected 4 or 2");
  check_product(m, n, k);
  return GroupSizes(k, n, bits, block_of(block));
}

void run_on_floats(const PackedGroups& b, nb::handle input, Element element, int64_t m, nb::handle bias_array,
                   float floor, float ceiling, int result, nb::handle output) {
  run_float_layer(b.n, b.k, input, element, m, bias_array, floor, ceiling, result, output,
                  [&](const FloatInput& x, const FloatEpilogue& y, void* out) { float_group_matmul(x, b, y, out); });
}

// (NaN seen, rows whose range is too wide)
template <class Packed>
std::pair<int64_t, int64_t> linear_of(nb::handle input, Element element, int64_t m, int how, Code code, float scale,
                                      int32_t zero, int32_t qmin, int32_t qmax, const Packed& b,
                                      const EpilogueSpec& spec, nb::handle output) {
  const Buffer x(input, "x"), out(output, "out", true);
  if (element == Element::f64) throw nb::value_error("element: expected f32, f16 or bf16");
  if (how < 0 || how > 2 || (code != Code::s8 && code != Code::u8)) throw nb::value_error("activation: unknown id");
  const Activations a{x.as(), element, m, static_cast<Activation>(how), code, scale, zero, qmin, qmax};
  x.require(product_of({m, b.k}, "m") * element_bytes(a.in), "x");
  out.require(product_of({m, b.n}, "m") * result_bytes(spec.result), "out");
  DynamicResult result;
  if constexpr (std::is_same_v<Packed, PackedGroups>) {
    if (how == 1 || code == Code::u8 || zero != 0)
      throw nb::value_error("activation: groups take signed codes without a zero point");
    const FloatEpilogue f = float_epilogue(spec, b.n);
    const GilReleased released;
    result = linear(a, b, f, out.as());
  } else {
    if (b.k > kExactK && spec.result == Result::s32) throw nb::value_error("result: s32 cannot hold so deep a sum");
    const Epilogue f = spec.epilogue(m, b.n);
    const GilReleased released;
    result = linear(a, b, f, out.as());
  }
  return {result.nan, result.bad_scale};
}

}  // namespace

void bind_gemm(nb::module_& m) {
  nb::class_<PackedMatrix>(m, "PackedMatrix", "The right side of a product, arranged as kernels read it.")
      .def_ro("k", &PackedMatrix::k)
      .def_ro("n", &PackedMatrix::n)
      .def_prop_ro(
          "fits", [](const PackedMatrix& b) { return 1 << b.kernel(255); },
          "How many products at a time fit 16 bits, whatever the codes on the left: 1, 2 or 4.")
      .def_prop_ro("nbytes", &PackedMatrix::nbytes)
      .def("unpack", &unpack_of<PackedMatrix>, "out"_a, "Writes the codes, [n, k], as they were given.");
  m.def("pack_matrix", &pack_matrix, "codes"_a, "is_signed"_a, "k"_a, "n"_a, "transposed"_a, "zero_point"_a.none(),
        "codes: [k, n], or [n, k] if transposed.");
  nb::class_<EpilogueSpec>(m, "Epilogue",
                           "What becomes of sums of products. result: 0 s32, 1 f32, 2 f16, 3 bf16, 4 s8, 5 u8.")
      .def(nb::init<int, nb::handle, nb::handle, nb::handle, nb::handle, float, float, float, int32_t, int32_t,
                    int32_t>(),
           "result"_a, "scale"_a.none(), "row_scale"_a.none(), "bias"_a.none(), "add"_a.none(), "floor"_a, "ceiling"_a,
           "out_scale"_a, "zero"_a, "lo"_a, "hi"_a);
  m.def("multiply", &multiply, "a"_a, "is_signed"_a, "m"_a, "a_zero_point"_a, "b"_a, "epilogue"_a, "out"_a, "wide"_a,
        "Codes a [m, k] times b. out: [m, n]; s32 is int64 where wide, or where k is past exact_depth.");
  m.def(
      "convolve", &convolve_of, "x"_a, "is_signed"_a, "zero"_a, "geometry"_a, "w"_a, "epilogue"_a, "out"_a,
      "first_out"_a, "stride"_a,
      "x [batch, height, width, channels] by w. geometry: batch, height, width, channels, kernel (h, w), stride, "
      "padding (top, left), dilation, output (h, w), first channel and channels of the group. out: [pixels, stride].");
  m.def("transpose", &transpose_of, "from_array"_a, "to"_a, "batch"_a, "rows"_a, "columns"_a, "item"_a,
        "to[b][j][i] = from[b][i][j], items of 1, 2, 4 or 8 bytes.");
  nb::class_<PackedGroups>(m, "PackedGroups", "Weights of 4 or 2 bits in groups, arranged as kernels read them.")
      .def_ro("k", &PackedGroups::k)
      .def_ro("n", &PackedGroups::n)
      .def_ro("bits", &PackedGroups::bits)
      .def_prop_ro("nbytes", &PackedGroups::nbytes)
      .def("unpack", &unpack_of<PackedGroups>, "out"_a, "Writes the codes, [n, k], one a byte, as they were given.")
      .def("run", &run_on_floats, "x"_a, "element"_a, "m"_a, "bias"_a.none(), "floor"_a, "ceiling"_a, "result"_a,
           "out"_a, "x [m, k], floats as they are, by the weights to out [m, n]. result: 1 f32, 2 f16, 3 bf16.");
  m.def("pack_groups", &pack_groups, "codes"_a, "k"_a, "n"_a, "bits"_a, "block"_a, "scale"_a, "zero_point"_a.none(),
        "zero_all"_a, "codes: [n, k], one a byte, from 0 on; scale: [n, groups], zero_point likewise, in bytes.");
  m.def("multiply_groups", &multiply_groups, "a"_a, "m"_a, "a_scale"_a, "b"_a, "epilogue"_a, "out"_a,
        "Codes a [m, k], s8, times b. a_scale: [m], or [m, groups].");
  m.def(
      "linear", &linear_of<PackedMatrix>, "x"_a, "element"_a, "m"_a, "how"_a, "code"_a, "scale"_a, "zero"_a, "qmin"_a,
      "qmax"_a, "b"_a, "epilogue"_a, "out"_a,
      "Floats x [m, k] to codes (how: 0 s8 per row, 1 u8 per row, 2 as given), times b. Returns (NaN seen, rows whose "
      "range is too wide).");
  m.def("linear_groups", &linear_of<PackedGroups>, "x"_a, "element"_a, "m"_a, "how"_a, "code"_a, "scale"_a, "zero"_a,
        "qmin"_a, "qmax"_a, "b"_a, "epilogue"_a, "out"_a, "The same for weights in groups.");
  m.def(
      "linear_workspace",
      [](int64_t rows, int64_t k) {
        product_of({rows, k}, "m, k");
        return linear_workspace(rows, k);
      },
      "m"_a, "k"_a, "Bytes of codes that linear keeps.");
  m.def(
      "groups_workspace",
      [](int64_t rows, int64_t n, int64_t k, int bits, int64_t block) {
        const GroupSizes sizes = sizes_of(rows, n, k, bits, block);
        return std::pair(group_matmul_workspace(sizes, rows), sizes.packed_bytes(true));
      },
      "m"_a, "n"_a, "k"_a, "bits"_a, "block"_a, "Bytes multiply_groups works in, and of b, packed, at most.");
  m.def(
      "float_groups_workspace",
      [](int64_t rows, int64_t n, int64_t k, int bits, int64_t block) {
        return float_group_workspace(sizes_of(rows, n, k, bits, block), rows);
      },
      "m"_a, "n"_a, "k"_a, "bits"_a, "block"_a, "Bytes PackedGroups.run works in.");
  m.def(
      "dot_limit",
      [] {
        const GilReleased released;
        return dot_limit();
      },
      "Operations a second that dot products of 8 bits reach on one thread of this CPU, measured: arithmetic alone. "
      "0 where that cannot be measured.");
  m.def(
      "fma_limit",
      [] {
        const GilReleased released;
        return fma_limit();
      },
      "Operations a second that multiplying and adding f32 reaches on one thread, measured: arithmetic alone.");
  m.def(
      "read_limit",
      [](int64_t bytes, double seconds) {
        if (bytes < 4096 || !(seconds > 0)) throw nb::value_error("bytes: expected at least 4096");
        const GilReleased released;
        return read_limit(bytes, seconds);
      },
      "bytes"_a, "seconds"_a,
      "Bytes a second that reading so many again and again reaches on one thread, the best of runs that last so long.");
  m.attr("exact_depth") = kExactK;
  m.def(
      "multiply_workspace",
      [](int64_t m, int64_t n, int64_t k, bool wide) {
        check_product(m, n, k);
        return gemm_workspace(m, n, k, wide);
      },
      "m"_a, "n"_a, "k"_a, "wide"_a = false, "Bytes multiply works in beside its arguments.");
  m.def(
      "packed_matrix_bytes",
      [](int64_t k, int64_t n) {
        product_of({k, n}, "k, n");
        return packed_matrix_bytes(k, n);
      },
      "k"_a, "n"_a, "Bytes of what pack_matrix makes of [k, n].");
}

}  // namespace lowbit
