#include "bindings/epilogue.h"

#include "bindings/bindings.h"

namespace lowbit {
namespace {

EpilogueSpec floats(Result result, std::pair<float, float> clamp, Floats scale, Floats row_scale, Floats bias,
                    Integers add) {
  if (result != Result::f32 && result != Result::f16 && result != Result::bf16)
    throw nb::value_error("result: expected f32, f16 or bf16");
  EpilogueSpec e(result, std::move(scale), std::move(row_scale), std::move(bias), std::move(add));
  e.floor = clamp.first, e.ceiling = clamp.second;
  return e;
}

EpilogueSpec codes(const CodeParams& params, Array<const float> scale, Floats row_scale, Integers add) {
  EpilogueSpec e(params.code == Code::s8 ? Result::s8 : Result::u8, std::move(scale), std::move(row_scale), {},
                 std::move(add));
  e.out_scale = params.scale, e.zero = params.zero_point, e.lo = params.qmin, e.hi = params.qmax;
  return e;
}

}  // namespace

Epilogue EpilogueSpec::epilogue(int64_t m, int64_t n) const {
  if (result != Result::s32 && !scales) throw nb::value_error("scale: missing");
  require(adds, 4 * n, "add");
  require(biases, 4 * n, "bias");
  Epilogue e = *this;
  if (scales) e.scale_per_column = is_many(*scales, 4, n, "scale");
  if (row_scales) e.scale_per_row = is_many(*row_scales, 4, m, "row_scale");
  return e;
}

Epilogue EpilogueSpec::float_epilogue(int64_t n) const {
  if (result < Result::f32 || result > Result::bf16) throw nb::value_error("epilogue: expected one of floats");
  require(biases, 4 * n, "bias");
  return *this;
}

void bind_epilogue(nb::module_& m) {
  bind_enum<Result>(m, "Result", "The element type of a result.", {"s32", "f32", "f16", "bf16", "s8", "u8"});
  nb::class_<CodeParams>(m, "CodeParams", "One scale, zero point and range for codes of a byte.")
      .def(nb::init<Code, double, int32_t, int32_t, int32_t>(), "code"_a, "scale"_a, "zero_point"_a, "qmin"_a, "qmax"_a)
      .def_ro("code", &CodeParams::code)
      .def_ro("scale", &CodeParams::scale)
      .def_ro("zero_point", &CodeParams::zero_point)
      .def_ro("qmin", &CodeParams::qmin)
      .def_ro("qmax", &CodeParams::qmax);
  nb::class_<EpilogueSpec>(m, "Epilogue", "What follows accumulation. The constructor's leaves sums as integers.")
      .def(
          "__init__",
          [](EpilogueSpec* self, Integers add, bool wide) {
            (new (self) EpilogueSpec(Result::s32, {}, {}, {}, std::move(add)))->wide = wide;
          },
          "add"_a.none() = nb::none(), "wide"_a = false)
      .def_static("floats", &floats, "result"_a, "clamp"_a, "scale"_a.none() = nb::none(),
                  "row_scale"_a.none() = nb::none(), "bias"_a.none() = nb::none(), "add"_a.none() = nb::none(),
                  "(sum + add) * (row_scale * scale) + bias, clamped. scale, bias, add: one per column.")
      .def_static("codes", &codes, "params"_a, "scale"_a, "row_scale"_a.none() = nb::none(),
                  "add"_a.none() = nb::none(), "(sum + add) * (row_scale * scale), requantized.");
}

}  // namespace lowbit
