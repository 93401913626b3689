// The gates of recurrent layers against the equations in double, and the same bits on every ISA.
#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "kernels/gates/gates.h"
#include "tests/check.h"

namespace lowbit {
namespace {

std::mt19937_64 rng(23);

// Below and around every vector, and odd.
const int64_t kHidden[] = {1, 3, 4, 7, 8, 9, 15, 16, 17, 33, 100};
constexpr double kBound = 2e-6;  // for inputs up to 1; a GRU multiplies the error of a gate by its inputs

std::vector<float> uniform(size_t n, float most) {
  std::uniform_real_distribution<float> in(-most, most);
  std::vector<float> out(n);
  for (float& v : out) v = in(rng);
  return out;
}
double logistic(double x) { return 1 / (1 + std::exp(-x)); }

struct Step {
  std::vector<float> x, g, h, c, out;
  int64_t rows, hidden;
  bool is_lstm;

  void run(Isa isa) {
    const GatesArgs k{x.data(), g.data(), h.data(), c.data(), out.data(), rows, hidden};
    (is_lstm ? gates_row(isa).lstm : gates_row(isa).gru)(k);
  }
  // (h, c) of one element, by the equations.
  std::pair<double, double> expected(int64_t row, int64_t i) const {
    const int64_t gates = is_lstm ? 4 : 3, at = row * hidden + i;
    const auto added = [&](int64_t gate) { return double{x[(row * gates + gate) * hidden + i]}; };
    const auto product = [&](int64_t gate) { return double{g[(row * gates + gate) * hidden + i]}; };
    const auto sum = [&](int64_t gate) { return added(gate) + product(gate); };
    if (!is_lstm) {
      const double made = std::tanh(added(2) + logistic(sum(0)) * product(2));
      return {made + logistic(sum(1)) * (h[at] - made), 0};
    }
    const double cell = logistic(sum(1)) * c[at] + logistic(sum(0)) * std::tanh(sum(2));
    return {logistic(sum(3)) * std::tanh(cell), cell};
  }
};

void test_step(Isa isa, bool is_lstm, int64_t hidden, float most) {
  const int64_t rows = 3, gates = is_lstm ? 4 : 3;
  const size_t n = static_cast<size_t>(rows * hidden);
  const Step before{uniform(n * gates, most),
                    uniform(n * gates, most),
                    uniform(n, 1),
                    uniform(n, 2),
                    std::vector<float>(n),
                    rows,
                    hidden,
                    is_lstm};
  Step after = before, scalar = before;
  after.run(isa), scalar.run(Isa::scalar);
  double worst = 0;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < hidden; ++i) {
      const auto [h, c] = before.expected(row, i);
      const int64_t at = row * hidden + i;
      worst = std::max(worst, std::abs(after.h[at] - h));
      if (is_lstm) worst = std::max(worst, std::abs(after.c[at] - c));
    }
  }
  const std::string what =
      std::string(is_lstm ? "lstm " : "gru ") + isa_name(isa) + " hidden " + std::to_string(hidden);
  report(worst < kBound * std::max(1.0f, most), what + " is off by " + std::to_string(worst));
  report(after.h == scalar.h && after.c == scalar.c, what + ": other bits than scalar");
  report(after.out == after.h, what + ": out is not h");
  report(is_lstm || after.c == before.c, what + ": writes c");
}

}  // namespace

void test_gates(Isa isa) {
  for (const bool is_lstm : {true, false})
    for (const int64_t hidden : kHidden)
      for (const float most : {0.01f, 2.0f, 30.0f}) test_step(isa, is_lstm, hidden, most);
}

}  // namespace lowbit
