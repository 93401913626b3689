// Searches for scales, error feedback and Cholesky factors against the equations written out plainly: the same bits.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/fp_environment.h"
#include "base/memory.h"
#include "base/threads.h"
#include "drivers/solve/solve.h"
#include "tests/check.h"
#include "tests/values.h"

namespace lowbit {
namespace {

using Floats = std::vector<float>;

Floats uniform(int64_t n, float most, float ties = 0) {
  std::uniform_real_distribution<float> in(-most, most);
  Floats out(static_cast<size_t>(n));
  for (float& v : out) v = rng() % 3 == 0 && ties > 0 ? (std::rint(in(rng) / ties) + 0.5f) * ties : in(rng);
  return out;
}

float clamp(float x, float lo, float hi) { return std::max(std::min(x, hi), lo); }

float held(float s, Element rounding) {
  if (rounding == Element::f32) return clamp(s, 0x1p-125f, 0x1.fffffep+111f);
  if (rounding == Element::f16) {
    half_t h;
    narrow(&h, clamp(s, 0x1p-24f, 65504.0f));
    return widen(h);
  }
  bfloat_t b;
  narrow(&b, clamp(s, 0x1p-125f, 0x1.fep+111f));
  return widen(b);
}

// ---- scales
// ----------------------------------------------------------------------------------------------------------

struct Found {
  float scale, zero, error;
};

struct Group {
  const ScaleSearchProblem& p;
  int64_t row, from, count;

  float x(int64_t i) const { return p.x[row * p.inputs + from + i]; }
  float w(int64_t i) const {
    const float square = p.floor[row] + x(i) * x(i);
    const float emphasis = p.emphasis == Emphasis::none ? 1 : p.emphasis == Emphasis::root ? std::sqrt(square) : square;
    return p.importance[from + i] * emphasis;
  }
  // The error, and the scale of least error for the steps found with s.
  Found with(float s, float z) const {
    float error = 0, xp = 0, pp = 0;
    for (int64_t i = 0; i < count; ++i) {
      const float step = clamp(std::rint(x(i) * (1 / s)), p.qmin - z, p.qmax - z), off = x(i) - s * step;
      error += w(i) * off * off, xp += w(i) * step * x(i), pp += w(i) * step * step;
    }
    return {held(xp > 0 && pp > 0 ? xp / pp : 0, p.rounding), z, error};
  }
  Found best() const {
    float lo = 0, hi = 0;
    for (int64_t i = 0; i < count; ++i) lo = std::min(lo, x(i)), hi = std::max(hi, x(i));
    const float zero = clamp(0, p.qmin, p.qmax);
    if (lo == hi) return {1, zero, 0};
    const float base = p.symmetric ? std::max(-lo, hi) / -p.qmin : (hi - lo) / (p.qmax - p.qmin);
    Found best{0, 0, INFINITY};
    for (int64_t f = 0; f < p.factor_count; ++f) {
      const float s = held(base * p.factors[f], p.rounding);
      const float middle = std::rint((p.qmin + p.qmax) * 0.5f - (hi + lo) * 0.5f / s);
      for (int32_t i = p.symmetric ? 0 : -p.offsets; i <= p.offsets; ++i) {
        const float z = p.symmetric ? -static_cast<float>(i) : clamp(middle + static_cast<float>(i), p.qmin, p.qmax);
        const Found first = with(s, z), second = with(first.scale, z);
        if (first.error < best.error) best = {s, z, first.error};
        if (second.error < best.error) best = {first.scale, z, second.error};
      }
    }
    return best;
  }
};

bool search_is_right(Isa isa, int64_t rows, int64_t inputs, int64_t group, bool symmetric, Element rounding) {
  const Floats x = uniform(rows * inputs, 1, 0.125f), importance = uniform(inputs, 1), floor = uniform(rows, 1);
  Floats d = importance, a = floor, factors{1.03f, 0.9f, 0.8f};
  for (float& v : d) v = std::max(v, 0.0f);  // some inputs count for nothing
  for (float& v : a) v = std::fabs(v);
  const int64_t groups = ceil_div(inputs, group);
  Floats scale(static_cast<size_t>(rows * groups), -1), error = scale;
  std::vector<int32_t> zero(scale.size(), 99);
  const Emphasis emphasis = static_cast<Emphasis>(rng() % 3);
  const ScaleSearchProblem p{x.data(),   d.data(), a.data(), rows,      inputs, group,    emphasis,     factors.data(),
                             3,          -8,       7,        symmetric, 1,      rounding, scale.data(), error.data(),
                             zero.data()};
  search_scales(p, isa);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t g = 0; g < groups; ++g) {
      const Found want = Group{p, row, g * group, std::min(group, inputs - g * group)}.best();
      const int64_t at = row * groups + g;
      if (scale[at] != want.scale || error[at] != want.error || static_cast<float>(zero[at]) != want.zero) return false;
    }
  }
  return true;
}

// ---- feedback
// --------------------------------------------------------------------------------------------------------

bool feedback_is_right(Isa isa, int64_t rows, int64_t inputs, bool rounded) {
  const int64_t groups = ceil_div(inputs, 7);
  const Floats w = uniform(rows * inputs, 1, 0.125f);
  Floats t = uniform(inputs * inputs, rounded ? 0.5f : 0.05f), scale = uniform(rows * groups, 1);
  for (int64_t i = 0; i < inputs; ++i) std::fill(&t[i * inputs], &t[i * inputs] + i + 1, NAN);  // is not read
  for (float& s : scale) s = 0.05f + std::fabs(s) / 4;
  Floats low(scale.size(), -8), high(scale.size(), 7);
  std::vector<int32_t> group(static_cast<size_t>(inputs));
  for (int64_t j = 0; j < inputs; ++j) group[j] = static_cast<int32_t>(j * 5 % groups);
  Floats v(w.size() + 1, 77), e(static_cast<size_t>(inputs));
  FeedbackProblem p{w.data(), t.data(), rows, inputs, nullptr, nullptr, nullptr, nullptr, 0, v.data()};
  if (rounded)
    p.scale = scale.data(), p.low = low.data(), p.high = high.data(), p.group = group.data(), p.groups = groups;
  feed_back_errors(p, isa);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t j = 0; j < inputs; ++j) {
      float sum = 0;
      for (int64_t i = 0; i < j; ++i) sum += e[i] * t[i * inputs + j];
      const float x = w[row * inputs + j], s = scale[row * groups + group[j]];
      const float step = rounded ? clamp(std::rint((x + sum) / s), -8, 7) : x + sum;
      e[j] = rounded ? x - s * step : 0 - step;
      if (v[row * inputs + j] != step) return false;
    }
  }
  return v.back() == 77;
}

bool product_is_right(Isa isa, int64_t rows, int64_t inputs, int64_t columns) {
  const Floats a = uniform(rows * inputs, 1), b = uniform(inputs * columns, 1);
  Floats out(static_cast<size_t>(rows * columns) + 1, 77);
  product_in_order(a.data(), b.data(), rows, inputs, columns, out.data(), isa);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t c = 0; c < columns; ++c) {
      float sum = 0;
      for (int64_t i = 0; i < inputs; ++i) sum += a[row * inputs + i] * b[i * columns + c];
      if (out[row * columns + c] != sum) return false;
    }
  }
  return out.back() == 77;
}

// ---- factors
// ---------------------------------------------------------------------------------------------------------

bool factor_is_right(Isa isa, int64_t n) {
  std::vector<double> a(static_cast<size_t>(n * n)), want;
  for (int64_t r = 0; r < n; ++r) {
    for (int64_t c = 0; c < r; ++c) a[r * n + c] = std::ldexp(static_cast<double>(rng() % 2001) - 1000, -10);
    for (int64_t c = r + 1; c < n; ++c) a[r * n + c] = NAN;  // is not read
    a[r * n + r] = static_cast<double>(n) + 1;
  }
  want = a;
  for (int64_t r = 0; r < n; ++r) {
    for (int64_t c = 0; c <= r; ++c) {
      double v = want[r * n + c];
      for (int64_t i = 0; i < c; ++i) v -= want[r * n + i] * want[c * n + i];
      want[r * n + c] = r == c ? std::sqrt(v) : v / want[c * n + c];
    }
    std::fill(&want[r * n] + r + 1, &want[r * n] + n, 0.0);
  }
  return factor_cholesky(a.data(), n, isa) == -1 && a == want;
}

bool bad_pivots_are_found(Isa isa) {
  const int64_t n = 70;
  for (const int64_t bad : {0, 31, 32, 50, 69}) {
    std::vector<double> a(static_cast<size_t>(n * n));
    for (int64_t i = 0; i < n; ++i) a[i * n + i] = i == bad ? 0 : 2;
    const std::vector<double> before = a;
    if (factor_cholesky(a.data(), n, isa) != bad || a != before) return false;
  }
  return true;
}

}  // namespace

void test_solve(Isa isa, bool half_stores) {
  const FpEnvironment environment;
  const std::string name = isa_name(isa);
  const int threads = num_threads();
  for (const int count : {1, 7}) {
    set_num_threads(count);
    // One row, one input; below, at and above the rows of a tile and the inputs of a block.
    for (const int64_t rows : {1, 15, 16, 33}) {
      for (const int64_t inputs : {1, 31, 32, 33, 70}) {
        const std::string what = name + " " + std::to_string(rows) + "x" + std::to_string(inputs);
        for (const bool on : {false, true}) {
          for (const Element rounding : {Element::f32, Element::bf16, Element::f16})
            for (const int64_t group : {1, 7, 32, 1000})
              if (rounding != Element::f16 || half_stores)
                report(search_is_right(isa, rows, inputs, group, on, rounding), "search_scales " + what);
          report(feedback_is_right(isa, rows, inputs, on), "feed_back_errors " + what);
        }
        report(product_is_right(isa, rows, inputs, 1 + inputs % 19), "product_in_order " + what);
      }
    }
    for (const int64_t n : {0, 1, 15, 16, 17, 31, 32, 33, 64, 95})
      report(factor_is_right(isa, n), "factor_cholesky " + name + " " + std::to_string(n));
    report(bad_pivots_are_found(isa), "factor_cholesky " + name + ": bad pivots");
  }
  set_num_threads(threads);
}

}  // namespace lowbit
