// Linear layers on floats: activations quantized on the way, or multiplied as they are.
#include "drivers/gemm/linear.h"

#include <type_traits>

#include "bindings/bindings.h"
#include "bindings/codes.h"
#include "bindings/epilogue.h"
#include "drivers/gemm/groups.h"
#include "drivers/gemm/weight_only.h"

namespace lowbit {
namespace {

Element narrow_float(Element element) {
  if (element == Element::f64) throw nb::value_error("element: expected f32, f16 or bf16");
  return element;
}

class LinearPlan {
 public:
  using Weights = std::variant<std::shared_ptr<PackedMatrix>, std::shared_ptr<PackedGroups>>;

  LinearPlan(Weights weights, Element element, Code code, const CodeParams* fixed,
             std::shared_ptr<EpilogueSpec> epilogue)
      : weights_(std::move(weights)), epilogue_(std::move(epilogue)) {
    input_.in = narrow_float(element);
    input_.how = byte_code(code) == Code::s8 ? Activation::s8_per_row : Activation::u8_per_row;
    if (fixed != nullptr) {
      input_.how = Activation::fixed, input_.code = fixed->code, input_.scale = fixed->scale;
      input_.zero = fixed->zero_point, input_.qmin = fixed->qmin, input_.qmax = fixed->qmax;
    }
    const bool is_signed = input_.how == Activation::fixed ? input_.code == Code::s8 && input_.zero == 0
                                                           : input_.how == Activation::s8_per_row;
    if (weights_.index() == 1 && !is_signed)
      throw nb::value_error("code: weights in groups take signed codes without a zero point");
    if (weights_.index() == 0 && epilogue_->result == Result::s32 && std::get<0>(weights_)->k > kExactK)
      throw nb::value_error("epilogue: s32 cannot hold so deep a sum");
  }

  bool run(const Array<const void>& x, const Array<void>& out) const {
    return std::visit(
        [&](const auto& weights) {
          const auto& b = *weights;
          Activations a = input_;
          a.x = x.data(), a.m = rows_of(x, b.k, element_bytes(a.in), "x");
          out.require(product_of({a.m, b.n}, "out") * result_bytes(epilogue_->result), "out");
          DynamicResult found;
          const auto work = [&](const auto& e) {
            without_gil_for_product(a.m, b.n, b.k, [&] { found = linear(a, b, e, out.data()); });
          };
          if constexpr (std::is_same_v<decltype(b), const PackedGroups&>) {
            work(epilogue_->float_epilogue(b.n));
          } else {
            work(epilogue_->epilogue(a.m, b.n));
          }
          return found.nan == 0 && found.bad_scale == 0;
        },
        weights_);
  }
  static int64_t workspace_for(int64_t m, int64_t k) {
    product_of({m, k}, "m, k");
    return linear_workspace(m, k);
  }

 private:
  Weights weights_;
  Activations input_{};
  std::shared_ptr<EpilogueSpec> epilogue_;
};

std::unique_ptr<const LogTable<float>> table_of(
    const std::optional<std::pair<Array<const float>, Array<const float>>>& tables) {
  if (!tables) return nullptr;
  const auto& [thresholds, magnitudes] = *tables;
  magnitudes.require(thresholds.bytes(), "magnitudes");
  const int64_t levels = thresholds.size();
  if (levels < 1) throw nb::value_error("thresholds: empty");
  return std::make_unique<LogTable<float>>(std::vector<float>(thresholds.data(), thresholds.data() + levels),
                                           std::vector<float>(magnitudes.data(), magnitudes.data() + levels));
}

// Sizes of weights, and which of them share a scale.
struct WeightLayout {
  int64_t n, k;
  GranularityKind kind;
  int64_t block;
};

struct WeightOnlySpec {
  using Tables = std::optional<std::pair<Array<const float>, Array<const float>>>;
  Array<const void> codes;
  Array<const float> scale;
  std::optional<Array<const int32_t>> zero;
  WeightOnly weights;

  WeightOnlySpec(Array<const void> code_array, Code code, const WeightLayout& layout, Array<const float> scales,
                 std::optional<Array<const int32_t>> zeros, const Tables& tables)
      : codes(std::move(code_array)),
        scale(std::move(scales)),
        zero(std::move(zeros)),
        weights(code, codes.data(), layout.n, layout.k, layout.kind, layout.block, scale.data(), data_of(zero),
                table_of(tables)) {
    if (tables && code != Code::s8 && code != Code::s16 && code != Code::s4 && code != Code::s2)
      throw nb::value_error("code: logarithmic codes are signed");
    codes.require(layout.n * weights.row_bytes(), "codes");
    scale.require(weights.scales() * 4, "scale");
    require(zero, weights.scales() * 4, "zero_point");
  }
  int64_t nbytes() const { return codes.bytes() + scale.bytes() + (zero ? zero->bytes() : 0); }
  static int64_t workspace_for(int64_t m, int64_t k) {
    product_of({m, k}, "m, k");
    return WeightOnly::workspace(m, k);
  }
};

class FloatLinearPlan {
 public:
  using Weights = std::variant<std::shared_ptr<WeightOnlySpec>, std::shared_ptr<PackedGroups>>;

  FloatLinearPlan(Weights weights, Element element, std::shared_ptr<EpilogueSpec> epilogue)
      : weights_(std::move(weights)), element_(narrow_float(element)), epilogue_(std::move(epilogue)) {
    const bool is_group = weights_.index() == 1;
    n_ = is_group ? std::get<1>(weights_)->n : std::get<0>(weights_)->weights.n();
    k_ = is_group ? std::get<1>(weights_)->k : std::get<0>(weights_)->weights.k();
    floats_ = epilogue_->float_epilogue(n_);
  }

  void run(const Array<const void>& x, const Array<void>& out) const {
    const FloatInput input{x.data(), element_, rows_of(x, k_, element_bytes(element_), "x")};
    out.require(product_of({input.m, n_}, "out") * result_bytes(floats_.result), "out");
    without_gil_for_product(input.m, n_, k_, [&] {
      if (weights_.index() == 1) {
        float_group_matmul(input, *std::get<1>(weights_), floats_, out.data());
      } else {
        std::get<0>(weights_)->weights.run(input, floats_, out.data());
      }
    });
  }

 private:
  Weights weights_;
  Element element_;
  std::shared_ptr<EpilogueSpec> epilogue_;
  int64_t n_, k_;
  FloatEpilogue floats_{};
};

}  // namespace

void bind_linear(nb::module_& m) {
  nb::class_<WeightLayout>(m, "WeightLayout", "Sizes of weights [n, k], and which of them share a scale.")
      .def(
          "__init__",
          [](WeightLayout* self, int64_t n, int64_t k, GranularityKind kind, int64_t block) {
            product_of({n, k}, "n, k");
            new (self) WeightLayout{n, k, kind, block_of(block)};
          },
          "n"_a, "k"_a, "kind"_a, "block"_a, "kind: one scale (tensor), one per row (channel), or per block of k.");
  nb::class_<WeightOnlySpec>(m, "WeightOnly", "Weights [n, k] as stored: packed, each row from a whole byte on.")
      .def(nb::init<Array<const void>, Code, const WeightLayout&, Array<const float>,
                    std::optional<Array<const int32_t>>, const WeightOnlySpec::Tables&>(),
           "codes"_a, "code"_a, "layout"_a, "scale"_a, "zero_point"_a.none(), "tables"_a.none(),
           "tables: thresholds and magnitudes of logarithmic codes.")
      .def_prop_ro("n", [](const WeightOnlySpec& s) { return s.weights.n(); })
      .def_prop_ro("k", [](const WeightOnlySpec& s) { return s.weights.k(); })
      .def_prop_ro("nbytes", &WeightOnlySpec::nbytes)
      .def_static("workspace_for", &WeightOnlySpec::workspace_for, "m"_a, "k"_a,
                  "Bytes a FloatLinearPlan on m rows works in.");
  nb::class_<LinearPlan>(m, "LinearPlan", "Floats x [..., k], quantized, times packed weights, with an epilogue.")
      .def(nb::init<LinearPlan::Weights, Element, Code, const CodeParams*, std::shared_ptr<EpilogueSpec>>(),
           "weights"_a, "element"_a, "code"_a, "params"_a.none(), "epilogue"_a,
           "code: what each row of x becomes, under a scale found in it; params: one set for all rows instead.")
      .def("run", &LinearPlan::run, "x"_a, "out"_a,
           "False where x has NaN, Inf or a range too wide for a scale; then `out` is undefined.")
      .def_static("workspace_for", &LinearPlan::workspace_for, "m"_a, "k"_a,
                  "Bytes of codes and their scales, beside what the GEMM works in.");
  nb::class_<FloatLinearPlan>(m, "FloatLinearPlan", "Floats x [..., k] times quantized weights, with an epilogue.")
      .def(nb::init<FloatLinearPlan::Weights, Element, std::shared_ptr<EpilogueSpec>>(), "weights"_a, "element"_a,
           "epilogue"_a, "Of the epilogue, bias and clamp apply.")
      .def("run", &FloatLinearPlan::run, "x"_a, "out"_a);
}

}  // namespace lowbit
