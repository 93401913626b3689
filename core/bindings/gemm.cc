// Integer products: packed matrices, and a call that multiplies and finishes.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>

#include <memory>

#include "base/threads.h"
#include "bindings/buffer.h"
#include "bindings/compute.h"
#include "drivers/gemm.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lowbit {
namespace {

Buffer optional(nb::handle array, const char* name) { return array.is_none() ? Buffer() : Buffer(array, name); }

// One value, or `many` of them; says which.
bool is_many(const Buffer& b, int64_t item, int64_t many, const char* name) {
  if (b.bytes() == item && many != 1) return false;
  b.require(item * many, name);
  return true;
}

std::unique_ptr<PackedMatrix> pack_matrix(nb::handle codes, bool is_signed, int64_t k, int64_t n, bool transposed,
                                          nb::handle zero_points) {
  const Buffer b(codes, "codes"), zero = optional(zero_points, "zero_point");
  if (k < 0 || n < 0) throw nb::value_error("k, n: must not be negative");
  b.require(k * n, "codes");
  const int64_t zeros = zero ? (is_many(zero, 4, n, "zero_point") ? n : 1) : 0;
  const nb::gil_scoped_release release;
  return std::make_unique<PackedMatrix>(b.as<uint8_t>(), is_signed, k, n, transposed ? 1 : n, transposed ? k : 1,
                                        zero.as<int32_t>(), zeros);
}

// Everything after the sums, held while a call runs.
struct FinishSpec {
  Result result;
  Buffer scale, row_scale, bias, add;
  float floor, ceiling, out_scale;
  int32_t zero, lo, hi;

  FinishSpec(int kind, nb::handle scale_array, nb::handle row_scale_array, nb::handle bias_array, nb::handle add_array,
             float least, float greatest, float step, int32_t zero_point, int32_t qmin, int32_t qmax)
      : scale(optional(scale_array, "scale")),
        row_scale(optional(row_scale_array, "row_scale")),
        bias(optional(bias_array, "bias")),
        add(optional(add_array, "add")),
        floor(least),
        ceiling(greatest),
        out_scale(step),
        zero(zero_point),
        lo(qmin),
        hi(qmax) {
    if (kind < 0 || kind > 5) throw nb::value_error("result: unknown id");
    result = static_cast<Result>(kind);
    if (result != Result::s32 && !scale) throw nb::value_error("scale: missing");
  }
  Finish finish(int64_t m, int64_t n) const {
    Finish f;
    f.result = result;
    f.add = add.as<int32_t>();
    if (add) add.require(4 * n, "add");
    f.bias = bias.as<float>();
    if (bias) bias.require(4 * n, "bias");
    f.scale = scale.as<float>();
    if (scale) f.scale_per_column = is_many(scale, 4, n, "scale");
    f.row_scale = row_scale.as<float>();
    if (row_scale) f.scale_per_row = is_many(row_scale, 4, m, "row_scale");
    f.floor = floor, f.ceiling = ceiling, f.out_scale = out_scale, f.zero = zero, f.lo = lo, f.hi = hi;
    return f;
  }
};

void multiply(nb::handle codes, bool is_signed, int64_t m, nb::handle zero_points, const PackedMatrix& b,
              const FinishSpec& spec, nb::handle output, bool wide) {
  const Buffer a(codes, "a"), zero(zero_points, "a_zero_point"), out(output, "out", true);
  a.require(m * b.k, "a");
  const bool deep = wide || b.k > kExactK;
  out.require(m * b.n * (spec.result == Result::s32 && deep ? 8 : result_bytes(spec.result)), "out");
  CodeRows rows{};
  rows.rows = m, rows.is_signed = is_signed, rows.zero = zero.as<int32_t>();
  rows.zero_per_row = is_many(zero, 4, m, "a_zero_point");
  rows.codes = a.as<uint8_t>(), rows.stride = b.k;
  Finish f = spec.finish(m, b.n);
  f.wide = wide;
  const nb::gil_scoped_release release;
  gemm(rows, b, f, out.as(), b.n);
}

}  // namespace

void bind_gemm(nb::module_& m) {
  nb::class_<PackedMatrix>(m, "PackedMatrix", "The right side of a product, arranged as kernels read it.")
      .def_ro("k", &PackedMatrix::k)
      .def_ro("n", &PackedMatrix::n)
      .def_ro("is_safe", &PackedMatrix::is_safe, "Whether pairs of products fit 16 bits.")
      .def_prop_ro("nbytes", &PackedMatrix::nbytes);
  m.def("pack_matrix", &pack_matrix, "codes"_a, "is_signed"_a, "k"_a, "n"_a, "transposed"_a, "zero_point"_a.none(),
        "codes: [k, n], or [n, k] if transposed.");
  nb::class_<FinishSpec>(m, "Finish", "What becomes of sums of products. result: 0 s32, 1 f32, 2 f16, 3 bf16, 4 s8, 5 u8.")
      .def(nb::init<int, nb::handle, nb::handle, nb::handle, nb::handle, float, float, float, int32_t, int32_t,
                    int32_t>(),
           "result"_a, "scale"_a.none(), "row_scale"_a.none(), "bias"_a.none(), "add"_a.none(), "floor"_a, "ceiling"_a,
           "out_scale"_a, "zero"_a, "lo"_a, "hi"_a);
  m.def("multiply", &multiply, "a"_a, "is_signed"_a, "m"_a, "a_zero_point"_a, "b"_a, "finish"_a, "out"_a, "wide"_a,
        "Codes a [m, k] times b. out: [m, n]; s32 is int64 where wide, or where k is past exact_depth.");
  m.attr("exact_depth") = kExactK;
  m.def(
      "multiply_workspace",
      [](int64_t m_, int64_t n, int64_t k) {
        return gemm_call_bytes(n) + num_threads() * gemm_thread_bytes(m_, k);
      },
      "m"_a, "n"_a, "k"_a, "Bytes multiply works in beside its arguments.");
}

}  // namespace lowbit
