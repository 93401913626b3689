#include "bindings/epilogue.h"

#include "bindings/bindings.h"

namespace lowbit {
namespace {

using Floats = std::optional<Array<const float>>;
using Integers = std::optional<Array<const int32_t>>;

void make_sums(EpilogueSpec* self, Integers add, bool wide) {
  new (self) EpilogueSpec{.wide = wide, .add = std::move(add)};
}

EpilogueSpec floats(Result result, std::pair<float, float> clamp, Floats scale, Floats row_scale, Floats bias,
                    Integers add) {
  if (result != Result::f32 && result != Result::f16 && result != Result::bf16)
    throw nb::value_error("result: expected f32, f16 or bf16");
  return {.result = result,
          .scale = std::move(scale),
          .row_scale = std::move(row_scale),
          .bias = std::move(bias),
          .add = std::move(add),
          .floor = clamp.first,
          .ceiling = clamp.second};
}

EpilogueSpec codes(const CodeParams& params, Array<const float> scale, Floats row_scale, Integers add) {
  return {.result = params.code == Code::s8 ? Result::s8 : Result::u8,
          .scale = std::move(scale),
          .row_scale = std::move(row_scale),
          .add = std::move(add),
          .codes = params};
}

}  // namespace

Epilogue EpilogueSpec::epilogue(int64_t m, int64_t n) const {
  if (result != Result::s32 && !scale) throw nb::value_error("scale: missing");
  require(add, 4 * n, "add");
  require(bias, 4 * n, "bias");
  Epilogue e;
  e.result = result, e.wide = wide;
  e.add = data_of(add), e.bias = data_of(bias), e.scale = data_of(scale), e.row_scale = data_of(row_scale);
  if (scale) e.scale_per_column = is_many(*scale, 4, n, "scale");
  if (row_scale) e.scale_per_row = is_many(*row_scale, 4, m, "row_scale");
  e.floor = floor, e.ceiling = ceiling;
  e.out_scale = codes.scale, e.zero = codes.zero_point, e.lo = codes.qmin, e.hi = codes.qmax;
  return e;
}

FloatEpilogue EpilogueSpec::float_epilogue(int64_t n) const {
  if (result < Result::f32 || result > Result::bf16) throw nb::value_error("epilogue: expected one of floats");
  require(bias, 4 * n, "bias");
  return {result, data_of(bias), floor, ceiling};
}

void bind_epilogue(nb::module_& m) {
  bind_enum<Result>(m, "Result", "The element type of a result.", {"s32", "f32", "f16", "bf16", "s8", "u8"});
  nb::class_<CodeParams>(m, "CodeParams", "One scale, zero point and range for codes of a byte.")
      .def(
          "__init__",
          [](CodeParams* self, Code code, double scale, int32_t zero_point, int32_t qmin, int32_t qmax) {
            check_codes(code, qmin, qmax);
            new (self) CodeParams{code, static_cast<float>(scale), zero_point, qmin, qmax};
          },
          "code"_a, "scale"_a, "zero_point"_a, "qmin"_a, "qmax"_a)
      .def_ro("code", &CodeParams::code)
      .def_ro("scale", &CodeParams::scale)
      .def_ro("zero_point", &CodeParams::zero_point)
      .def_ro("qmin", &CodeParams::qmin)
      .def_ro("qmax", &CodeParams::qmax);
  nb::class_<EpilogueSpec>(m, "Epilogue", "What follows accumulation. The constructor's leaves sums as integers.")
      .def("__init__", &make_sums, "add"_a.none() = nb::none(), "wide"_a = false)
      .def_static("floats", &floats, "result"_a, "clamp"_a, "scale"_a.none() = nb::none(),
                  "row_scale"_a.none() = nb::none(), "bias"_a.none() = nb::none(), "add"_a.none() = nb::none(),
                  "(sum + add) * (row_scale * scale) + bias, clamped. scale, bias, add: one per column.")
      .def_static("codes", &codes, "params"_a, "scale"_a, "row_scale"_a.none() = nb::none(),
                  "add"_a.none() = nb::none(), "(sum + add) * (row_scale * scale), requantized.");
}

}  // namespace lowbit
