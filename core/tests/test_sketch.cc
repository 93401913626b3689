// Sketches: every row against plain loops, and that the order, the blocks and the threads leave no trace.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/fp_environment.h"
#include "base/memory.h"
#include "base/threads.h"
#include "drivers/reduce/scores.h"
#include "drivers/reduce/sketch.h"
#include "kernels/gemm_float/gemm_float.h"
#include "simd/vec.h"
#include "tests/check.h"

namespace lowbit {
namespace {

std::mt19937_64 rng(29);

// Zeros of both signs, the smallest and largest numbers, and values of many sizes.
std::vector<float> numbers(int64_t n) {
  const float special[] = {0.0f, -0.0f, 1e-45f, -1e-45f, 3.4e38f, -3.4e38f, 1.0f, -1.0f};
  std::vector<float> v(static_cast<size_t>(n));
  for (float& x : v) {
    const double u = std::ldexp(static_cast<double>(rng() % 2000001) / 1e6 - 1, static_cast<int>(rng() % 60) - 30);
    x = rng() % 16 == 0 ? special[rng() % 8] : static_cast<float>(u);
  }
  return v;
}

double folded(const double* s) { return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7])); }

bool stats_are_right(const SketchRow& row, const std::vector<float>& x) {
  const int64_t n = static_cast<int64_t>(x.size());
  std::vector<uint64_t> bins(16);
  const auto stats_of = [&](const SketchRow& r, const std::vector<float>& v) {
    BlockStats s{};
    r.stats_and_count({v.data(), n, 23, 100, 7, 8, 1, bins.data()}, s);
    return s;
  };
  const BlockStats got = stats_of(row, x);
  double sums[kPowers][8] = {};
  uint32_t top = 0, least = 0;
  float lo = INFINITY, hi = -INFINITY;
  for (int64_t i = 0; i < n; ++i) {
    const double d = x[i];
    sums[0][i % 8] += d, sums[1][i % 8] += d * d, sums[2][i % 8] += std::fabs(d);
    const uint32_t m = float_to_bits(x[i]) & 0x7fffffffu;
    top = std::max(top, m);
    if (m != 0 && (least == 0 || m < least)) least = m;
    lo = std::min(lo, x[i]), hi = std::max(hi, x[i]);
  }
  bool good = got.top == top && got.least == least && got.lo == lo + 0.0f && got.hi == hi + 0.0f;
  for (int k = 0; k < kPowers; ++k) good = good && got.sum[k] == folded(sums[k]);
  const BlockStats plain = stats_of(sketch_rows(Isa::scalar).front(), x);
  std::vector<float> other = x;
  other[static_cast<size_t>(rng() % x.size())] += 1.0f;
  const BlockStats changed = stats_of(row, other);
  return good && got.hash == plain.hash && (changed.hash != got.hash || other == x);
}

bool count_is_right(const SketchRow& row, const std::vector<float>& x, int shift, int32_t negative) {
  const int32_t first = static_cast<int32_t>(float_to_bits(1e-3f) >> shift) - 1;
  const int32_t last = static_cast<int32_t>(float_to_bits(1e3f) >> shift) - first;  // some lie beyond either end
  std::vector<uint64_t> got(static_cast<size_t>(last + 1 + negative), 3), want = got;
  const std::vector<uint64_t> before = got;
  CountArgs a{x.data(), static_cast<int64_t>(x.size()), shift, first, last, negative, 1, got.data()};
  for (const float v : x) {
    const int64_t bin = static_cast<int64_t>((float_to_bits(v) & 0x7fffffffu) >> shift) - first;
    ++want[static_cast<size_t>(std::clamp<int64_t>(bin, 0, last) + (std::signbit(v) ? negative : 0))];
  }
  row.count(a);
  const bool counted = got == want;
  a.by = ~uint64_t{0};
  row.count(a);
  const bool taken_back = got == before;
  a.by = 1;
  BlockStats s;
  row.stats_and_count(a, s);
  return counted && taken_back && got == want;
}

template <class In>
bool widen_is_right(Isa isa, Element in, int64_t n) {
  std::vector<In> x(static_cast<size_t>(n));
  for (In& v : x) v.bits = static_cast<uint16_t>(rng());
  const int64_t padded = round_up(n, kFloatPad);
  std::vector<float> got(static_cast<size_t>(padded) + 1, 7.0f);
  gemm_float_row(isa, in).widen(x.data(), n, got.data());
  for (int64_t i = 0; i < n; ++i) {
    const float want = widen(x[i]);
    if (std::isnan(want) ? !std::isnan(got[i]) : float_to_bits(got[i]) != float_to_bits(want)) return false;
  }
  return got[static_cast<size_t>(padded)] == 7.0f && std::all_of(&got[n], &got[padded], [](float v) { return v == 0; });
}

bool same(Sketches& a, Sketches& b) {
  a.settle(), b.settle();
  bool good = a.counts == b.counts && a.held == b.held && a.tails == b.tails && a.tailed == b.tailed;
  for (int64_t s = 0; s < a.scales(); ++s) {
    const SketchTotals &t = a.totals[s], &u = b.totals[s];
    good = good && t.n == u.n && t.zeros == u.zeros && t.samples == u.samples && t.hash[0] == u.hash[0] &&
           t.hash[1] == u.hash[1] && t.top == u.top && t.least == u.least && t.lo == u.lo && t.hi == u.hi &&
           t.positive == u.positive && t.negative == u.negative;
    for (int k = 0; k < Sketches::kMoments; ++k) {
      const ExactSum &m = a.moments[s * Sketches::kMoments + k], &o = b.moments[s * Sketches::kMoments + k];
      good = good && std::memcmp(m.limb, o.limb, sizeof m.limb) == 0 && m.finite == o.finite;
    }
    const int64_t r = a.reservoir();
    good = good && std::memcmp(&a.kept[s * r], &b.kept[s * r], static_cast<size_t>(a.held[s]) * sizeof(Kept)) == 0;
  }
  return good;
}

Granularity flat(int64_t n) {
  Granularity l;
  l.inner = n;
  return l;
}

}  // namespace

void test_sketch_rows(Isa isa) {
  const FpEnvironment environment;
  const SketchRow& row = sketch_rows(isa).front();
  const std::string name = std::string("sketch ") + isa_name(isa);
  bool stats = true, count = true, wide = true;
  for (const int64_t n : {1, 2, 7, 8, 31, 32, 33, 63, 64, 100, 1000, 4095, 4096}) {
    const std::vector<float> x = numbers(n);
    stats = stats && stats_are_right(row, x);
    for (const int shift : {13, 17, 20, 23})
      for (const int32_t negative : {0, 1 << 18}) count = count && count_is_right(row, x, shift, negative);
    wide = wide && widen_is_right<half_t>(isa, Element::f16, n) && widen_is_right<bfloat_t>(isa, Element::bf16, n);
  }
  report(stats, name + " stats");
  report(count, name + " count");
  report(wide, name + " widen");
}

void test_sketch_drivers() {
  const int64_t shards = 6, n = 9000;
  std::vector<std::vector<float>> data;
  for (int64_t s = 0; s < shards; ++s) {
    data.push_back(numbers(n));
    for (float& v : data.back()) v = std::clamp(v * (s == 4 ? 1e6f : 1.0f), -1e30f, 1e30f);
    if (s == 1)
      for (float& v : data.back()) v = -std::fabs(v);  // one sign alone, then the other
  }
  Sketches all(1, 512, 100);
  for (const auto& x : data) all.add(flat(n), x.data(), Element::f32, false);
  for (int round = 0; round < 8; ++round) {
    std::vector<int64_t> order(shards);
    for (int64_t s = 0; s < shards; ++s) order[s] = s;
    std::shuffle(order.begin(), order.end(), rng);
    Sketches left(1, 512, 100), right(1, 512, 100);
    for (int64_t s = 0; s < shards; ++s)
      (s % 2 == round % 2 ? left : right).add(flat(n), data[order[s]].data(), Element::f32, false);
    right.add(left);
    report(same(all, right), "sketch: shards in another order");
  }
  std::vector<float> large = numbers(600001);
  for (float& v : large) v = std::clamp(v, -1e30f, 1e30f);
  std::vector<std::unique_ptr<Sketches>> by_threads;
  const int before = num_threads();
  for (const int threads : {1, 2, 5}) {
    set_num_threads(threads);
    by_threads.push_back(std::make_unique<Sketches>(1, 4096, 500));
    by_threads.back()->add(flat(static_cast<int64_t>(large.size())), large.data(), Element::f32, false);
    report(same(*by_threads.front(), *by_threads.back()), "sketch: threads");
  }
  // Zeros of f64 are counted in f64: a number that only rounds to 0 is none. However x is cut, and with NaN left out.
  std::vector<double> wide(large.begin(), large.end());
  for (size_t i = 0; i < wide.size(); i += 3) wide[i] = i % 2 == 0 ? 0.0 : i % 5 == 0 ? -0.0 : 1e-300;
  const int64_t size = static_cast<int64_t>(wide.size());
  for (const bool with_nan : {false, true}) {
    if (with_nan) wide[1] = wide[400000] = NAN;
    const int64_t zeros = std::count(wide.begin(), wide.end(), 0.0);
    by_threads.clear();
    for (const int threads : {1, 2, 5}) {
      set_num_threads(threads);
      Sketches& s = *by_threads.emplace_back(std::make_unique<Sketches>(1, 4096, 500));
      s.add(flat(size), wide.data(), Element::f64, with_nan);
      report(s.totals[0].zeros == zeros && same(*by_threads.front(), s), "sketch: zeros of f64 by threads");
    }
    Sketches parts(1, 4096, 500);
    for (int64_t first = 0; first < size; first += 50 * kSumBlock) {
      Sketches part(1, 4096, 500);
      part.add(flat(std::min(50 * kSumBlock, size - first)), wide.data() + first, Element::f64, with_nan);
      parts.add(part);
    }
    parts.settle();
    report(parts.totals[0].zeros == zeros && parts.counts == by_threads.front()->counts,
           "sketch: zeros of f64 in parts");
  }
  set_num_threads(before);
  // A NaN past the first blocks: nothing is taken.
  Sketches clean(1, 512, 100), hurt(1, 512, 100);
  clean.add(flat(n), data[0].data(), Element::f32, false);
  hurt.add(flat(n), data[0].data(), Element::f32, false);
  large[500000] = NAN;
  const bool refused = hurt.add(flat(static_cast<int64_t>(large.size())), large.data(), Element::f32, false) == 1;
  report(refused && same(clean, hurt), "sketch: a NaN leaves it as it was");
  // Sums without rounding: what cancels leaves nothing.
  ExactSum sum;
  for (const double v : {1e300, 1.0, -1e300, 1e-300, -1.0, -1e-300}) sum.add(v);
  sum.normalize();
  report(std::all_of(sum.limb, sum.limb + ExactSum::kLimbs, [](int64_t l) { return l == 0; }), "exact sum cancels");
}

}  // namespace lowbit
