// Linear layers on floats with quantized weights.
#include "drivers/gemm/weight_only.h"

#include <nanobind/nanobind.h>

#include <memory>
#include <vector>

#include "bindings/arrays.h"
#include "bindings/bindings.h"
#include "bindings/float_layer.h"
#include "bindings/sizes.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lowbit {
namespace {

Buffer optional(nb::handle array, const char* name) { return array.is_none() ? Buffer() : Buffer(array, name); }

std::unique_ptr<const LogTable<float>> table_of(nb::handle thresholds, nb::handle magnitudes) {
  if (thresholds.is_none()) return nullptr;
  const Buffer t(thresholds, "thresholds"), m(magnitudes, "magnitudes");
  m.require(t.bytes(), "magnitudes");
  const int64_t levels = t.bytes() / 4;
  if (levels < 1) throw nb::value_error("thresholds: empty");
  return std::make_unique<LogTable<float>>(std::vector<float>(t.as<float>(), t.as<float>() + levels),
                                           std::vector<float>(m.as<float>(), m.as<float>() + levels));
}

Code checked(Code c, int64_t n, int64_t k, int64_t block, bool logarithmic) {
  product_of({n, k}, "n, k"), block_of(block);
  if (logarithmic && c != Code::s8 && c != Code::s16 && c != Code::s4 && c != Code::s2)
    throw nb::value_error("code: logarithmic codes are signed");
  return c;
}

// The arrays are held for as long as this lives.
struct WeightOnlySpec {
  Buffer codes, scale, zero;
  WeightOnly weights;

  WeightOnlySpec(Code code, nb::handle code_array, int64_t n, int64_t k, GranularityKind kind, int64_t block,
                 nb::handle scale_array, nb::handle zero_array, nb::handle thresholds, nb::handle magnitudes)
      : codes(code_array, "codes"),
        scale(scale_array, "scale"),
        zero(optional(zero_array, "zero_point")),
        weights(checked(code, n, k, block, !thresholds.is_none()), codes.as(), n, k, kind, block_of(block),
                scale.as<float>(), zero.as<int32_t>(), table_of(thresholds, magnitudes)) {
    codes.require(n * weights.row_bytes(), "codes");
    scale.require(weights.scales() * 4, "scale");
    if (zero) zero.require(weights.scales() * 4, "zero_point");
  }
  int64_t nbytes() const { return codes.bytes() + scale.bytes() + (zero ? zero.bytes() : 0); }

  void run(nb::handle input, Element element, int64_t m, nb::handle bias_array, float floor, float ceiling, int result,
           nb::handle output) const {
    run_float_layer(weights.n(), weights.k(), input, element, m, bias_array, floor, ceiling, result, output,
                    [&](const FloatInput& x, const FloatEpilogue& y, void* out) { weights.run(x, y, out); });
  }
};

}  // namespace

void bind_weight_only(nb::module_& m) {
  nb::class_<WeightOnlySpec>(m, "WeightOnly",
                             "Weights [n, k] of a linear layer on floats, packed, each row from a whole byte on.")
      .def(nb::init<Code, nb::handle, int64_t, int64_t, GranularityKind, int64_t, nb::handle, nb::handle, nb::handle,
                    nb::handle>(),
           "code"_a, "codes"_a, "n"_a, "k"_a, "kind"_a, "block"_a, "scale"_a, "zero_point"_a.none(),
           "thresholds"_a.none(), "magnitudes"_a.none(), "kind: one scale, one per row, or one per block of k.")
      .def_prop_ro("n", [](const WeightOnlySpec& s) { return s.weights.n(); })
      .def_prop_ro("k", [](const WeightOnlySpec& s) { return s.weights.k(); })
      .def_prop_ro("nbytes", &WeightOnlySpec::nbytes)
      .def("run", &WeightOnlySpec::run, "x"_a, "element"_a, "m"_a, "bias"_a.none(), "floor"_a, "ceiling"_a, "result"_a,
           "out"_a, "x [m, k] by the weights to out [m, n]. result: 1 f32, 2 f16, 3 bf16.")
      .def(
          "workspace",
          [](const WeightOnlySpec& s, int64_t rows) {
            product_of({rows, s.weights.k()}, "m");
            return s.weights.workspace(rows);
          },
          "m"_a, "Bytes run works in beside its arguments.");
  m.def(
      "weight_only_workspace",
      [](int64_t rows, int64_t k) {
        product_of({rows, k}, "m, k");
        return WeightOnly::workspace(rows, k);
      },
      "m"_a, "k"_a, "The same from sizes alone.");
}

}  // namespace lowbit
