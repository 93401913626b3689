// Scales of least error, rounding with error feedback, and Cholesky factors.
#include "drivers/solve/solve.h"

#include "bindings/bindings.h"

namespace lowbit {
namespace {

struct SearchCodes {
  float qmin, qmax;
  bool symmetric;
  int32_t offsets;
  Element rounding;

  SearchCodes(int32_t lo, int32_t hi, bool is_symmetric, int32_t most_offsets, Element stored)
      : qmin(static_cast<float>(lo)),
        qmax(static_cast<float>(hi)),
        symmetric(is_symmetric),
        offsets(most_offsets),
        rounding(stored) {
    if (lo < -32768 || hi > 65535 || lo >= hi) refuse("qmin, qmax", "expected at least two codes of up to 16 bits");
    if (symmetric && lo >= 0) refuse("qmin", "symmetric codes must reach below 0");
    if (offsets < 0 || offsets > (symmetric ? -lo : hi - lo)) refuse("offsets", "out of bounds");
    if (rounding == Element::f64) refuse("rounding", "expected f32, f16 or bf16");
  }
};

struct SearchWeights {
  Array<const float> x;
  std::optional<Array<const float>> importance, floor;
  int64_t rows, inputs, group;
  Emphasis emphasis;

  SearchWeights(Array<const float> weights, std::optional<Array<const float>> d, std::optional<Array<const float>> a,
                std::tuple<int64_t, int64_t, int64_t> sizes, Emphasis e)
      : x(std::move(weights)), importance(std::move(d)), floor(std::move(a)), emphasis(e) {
    std::tie(rows, inputs, group) = sizes;
    group = block_of(group);
    x.require(product_of({rows, inputs}, "rows, inputs") * 4, "x");
    if (importance) importance->require(inputs * 4, "importance");
    if (floor) floor->require(rows * 4, "floor");
    if (emphasis != Emphasis::none && !floor) refuse("floor", "missing; the emphasis needs it");
  }
};

void search(const SearchWeights& of, const Array<const float>& factors, const SearchCodes& codes,
            const Array<float>& scale, const Array<int32_t>& zero_point, const Array<float>& error) {
  const int64_t groups = of.inputs == 0 ? 0 : (of.inputs - 1) / of.group + 1;
  scale.require(of.rows * groups * 4, "scale");
  zero_point.require(scale.bytes(), "zero_point"), error.require(scale.bytes(), "error");
  if (factors.size() == 0) refuse("factors", "empty; expected at least one");
  require_all_apart(
      {{scale, "scale"}, {zero_point, "zero_point"}, {error, "error"}},
      {{of.x, "x"}, {buffer_of(of.importance), "importance"}, {buffer_of(of.floor), "floor"}, {factors, "factors"}});
  const GilReleased released;
  search_scales({of.x.data(), of.importance ? of.importance->data() : nullptr, of.floor ? of.floor->data() : nullptr,
                 of.rows, of.inputs, of.group, of.emphasis, factors.data(), factors.size(), codes.qmin, codes.qmax,
                 codes.symmetric, codes.offsets, codes.rounding, scale.data(), error.data(), zero_point.data()},
                active_isa());
}

struct Steps {
  Array<const float> scale, low, high;
  Array<const int32_t> group;
};

void feed_back(const Array<const float>& w, const Array<const float>& t, int64_t inputs,
               const std::optional<Steps*>& steps, const Array<float>& v) {
  if (inputs < 1) refuse("inputs", "expected at least 1");
  const int64_t rows = rows_of(w, inputs, 4, "w");
  t.require(product_of({inputs, inputs}, "inputs") * 4, "t"), v.require(w.bytes(), "v");
  require_all_apart({{v, "v"}}, {{w, "w"}, {t, "t"}});
  FeedbackProblem p{w.data(), t.data(), rows, inputs, nullptr, nullptr, nullptr, nullptr, 0, v.data()};
  if (steps) {
    const Steps& s = **steps;
    s.group.require(inputs * 4, "group");
    p.groups = rows == 0 ? 0 : s.scale.size() / rows;
    s.scale.require(rows * p.groups * 4, "scale"), s.low.require(s.scale.bytes(), "low");
    s.high.require(s.scale.bytes(), "high");
    require_all_apart({{v, "v"}}, {{s.scale, "scale"}, {s.low, "low"}, {s.high, "high"}, {s.group, "group"}});
    for (int64_t i = 0; i < inputs && rows > 0; ++i)
      if (s.group.data()[i] < 0 || s.group.data()[i] >= p.groups) refuse("group", "out of bounds");
    p.scale = s.scale.data(), p.low = s.low.data(), p.high = s.high.data(), p.group = s.group.data();
  }
  const GilReleased released;
  feed_back_errors(p, active_isa());
}

void product(const Array<const float>& a, const Array<const float>& b, int64_t inputs, const Array<float>& out) {
  if (inputs < 1) refuse("inputs", "expected at least 1");
  const int64_t rows = rows_of(a, inputs, 4, "a"), columns = b.size() / inputs;
  b.require(inputs * columns * 4, "b");
  out.require(product_of({rows, columns}, "a, b") * 4, "out");
  require_all_apart({{out, "out"}}, {{a, "a"}, {b, "b"}});
  const GilReleased released;
  product_in_order(a.data(), b.data(), rows, inputs, columns, out.data(), active_isa());
}

int64_t cholesky(const Array<double>& a, int64_t n) {
  a.require(product_of({n, n}, "n") * 8, "a");
  const GilReleased released;
  return factor_cholesky(a.data(), n, active_isa());
}

}  // namespace

void bind_solve(nb::module_& m) {
  bind_enum<Emphasis>(m, "Emphasis", "How much the error of a weight x counts: 1, sqrt(a + x^2) or a + x^2.",
                      {"none", "root", "square"});
  nb::class_<SearchCodes>(m, "SearchCodes", "Codes and scales to choose among.")
      .def(nb::init<int32_t, int32_t, bool, int32_t, Element>(), "qmin"_a, "qmax"_a, "symmetric"_a, "offsets"_a,
           "rounding"_a);
  nb::class_<SearchWeights>(m, "SearchWeights", "Weights, and how much their errors count.")
      .def(nb::init<Array<const float>, std::optional<Array<const float>>, std::optional<Array<const float>>,
                    std::tuple<int64_t, int64_t, int64_t>, Emphasis>(),
           "x"_a, "importance"_a.none(), "floor"_a.none(), "sizes"_a, "emphasis"_a,
           "sizes: rows, inputs, and inputs of a group. importance: of each input; floor: of each row.");
  m.def("search_scales", &search, "weights"_a, "factors"_a, "codes"_a, "scale"_a, "zero_point"_a, "error"_a,
        "Writes the scale and zero point of least weighted squared error of each group, and that error.");
  nb::class_<Steps>(m, "FeedbackSteps", "Scales, least and greatest steps of each group, and the group of each input.")
      .def(nb::init<Array<const float>, Array<const float>, Array<const float>, Array<const int32_t>>(), "scale"_a,
           "low"_a, "high"_a, "group"_a);
  m.def("feed_back_errors", &feed_back, "w"_a, "t"_a, "inputs"_a, "steps"_a.none(), "v"_a,
        "Writes the steps of w, rounded one input after the other; without steps the solution of v T = w.");
  m.def("product_in_order", &product, "a"_a, "b"_a, "inputs"_a, "out"_a,
        "Writes the product of a, [rows, inputs], and b, [inputs, columns], summed in order.");
  m.def("factor_cholesky", &cholesky, "a"_a, "n"_a,
        "Replaces a by its lower Cholesky factor. Returns the first row whose pivot is not positive, or -1.");
}

}  // namespace lowbit
