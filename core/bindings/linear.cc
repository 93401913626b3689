// Linear layers on floats: activations quantized on the way, or multiplied as they are.
#include "drivers/gemm/linear.h"

#include "bindings/bindings.h"
#include "bindings/epilogue.h"

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
    input_.code = byte_code(code);
    if (fixed != nullptr) {
      input_.fixed = true, input_.code = fixed->code, input_.scale = fixed->scale;
      input_.zero = fixed->zero_point, input_.qmin = fixed->qmin, input_.qmax = fixed->qmax;
    }
    if (weights_.index() == 1 && (input_.code != Code::s8 || input_.zero != 0))
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
          const Epilogue e = weights_.index() == 1 ? epilogue_->float_epilogue(b.n) : epilogue_->epilogue(a.m, b.n);
          without_gil_for_product(a.m, b.n, b.k, [&] { found = linear(a, b, e, out.data()); });
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

using Tables = std::optional<std::pair<Array<const float>, Array<const float>>>;

// Weights, and the arrays they refer to.
struct WeightOnlySpec : WeightOnly {
  Array<const void> code_array;
  Array<const float> scale_array;
  Integers zero_array;

  WeightOnlySpec(Array<const void> c, Code of, const WeightLayout& layout, Array<const float> s, Integers z,
                 const Tables& tables)
      : WeightOnly{layout, of, c.data(), s.data(), data_of(z), nullptr},
        code_array(std::move(c)),
        scale_array(std::move(s)),
        zero_array(std::move(z)) {
    if (tables) table = std::make_unique<LogTable<float>>(log_table<float>(of, tables->first, tables->second));
    code_array.require(n * row_bytes(), "codes");
    scale_array.require(scales() * 4, "scale");
    require(zero_array, scales() * 4, "zero_point");
  }
  int64_t nbytes() const { return code_array.bytes() + scale_array.bytes() + buffer_of(zero_array).bytes(); }
  static int64_t workspace_for(int64_t m, int64_t rows_k) {
    product_of({m, rows_k}, "m, k");
    return weight_only_workspace(m, rows_k);
  }
};

class FloatLinearPlan {
 public:
  using Weights = std::variant<std::shared_ptr<WeightOnlySpec>, std::shared_ptr<PackedGroups>>;

  FloatLinearPlan(Weights weights, Element element, std::shared_ptr<EpilogueSpec> epilogue)
      : weights_(std::move(weights)), element_(narrow_float(element)), epilogue_(std::move(epilogue)) {
    std::visit([&](const auto& b) { floats_ = epilogue_->float_epilogue(b->n); }, weights_);
  }

  void run(const Array<const void>& x, const Array<void>& out) const {
    std::visit(
        [&](const auto& weights) {
          const auto& b = *weights;
          const FloatInput input{x.data(), element_, rows_of(x, b.k, element_bytes(element_), "x")};
          out.require(product_of({input.m, b.n}, "out") * result_bytes(floats_.result), "out");
          without_gil_for_product(input.m, b.n, b.k, [&] { float_matmul(input, b, floats_, out.data()); });
        },
        weights_);
  }

 private:
  Weights weights_;
  Element element_;
  std::shared_ptr<EpilogueSpec> epilogue_;
  Epilogue floats_;
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
      .def(nb::init<Array<const void>, Code, const WeightLayout&, Array<const float>, Integers, const Tables&>(),
           "codes"_a, "code"_a, "layout"_a, "scale"_a, "zero_point"_a.none(), "tables"_a.none(),
           "tables: thresholds and magnitudes of logarithmic codes.")
      .def_ro("n", &WeightOnlySpec::n)
      .def_ro("k", &WeightOnlySpec::k)
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
