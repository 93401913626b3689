// Sketches of streams, and what a histogram says of mappings.
#include "drivers/reduce/sketch.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/tuple.h>

#include <cstring>
#include <utility>
#include <vector>

#include "bindings/arrays.h"
#include "bindings/bindings.h"
#include "bindings/gil.h"
#include "bindings/sizes.h"
#include "drivers/reduce/scores.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lowbit {
namespace {

constexpr int64_t kCounters = 15;
constexpr int64_t kMostBins = 1 << 24;
constexpr int64_t kLimbs = ExactSum::kLimbs;

int64_t add(Sketches& self, const Array<const void>& x, Element in, const Granularity& layout, bool skip) {
  x.require(layout.elements() * element_bytes(in), "x");
  if (layout.scales() != self.scales()) throw nb::value_error("layout: another number of scales");
  const GilReleased released;
  return self.add(layout, x.as(), in, skip).bad;
}

void merge(Sketches& self, const Sketches& other) {
  if (&self == &other) throw nb::value_error("other: the sketch itself");
  if (self.scales() != other.scales() || self.bins() != other.bins() || self.reservoir() != other.reservoir())
    throw nb::value_error("other: another size");
  const GilReleased released;
  self.add(other);
}

// The arrays that a state is written to and read from: per scale, its totals and its samples.
struct StateTotals {
  Array<uint64_t> counters;
  Array<double> extremes;
  Array<int64_t> limbs;

  StateTotals(Array<uint64_t> a, Array<double> b, Array<int64_t> c)
      : counters(std::move(a)), extremes(std::move(b)), limbs(std::move(c)) {}
  void require_sizes_of(const Sketches& s) const {
    const int64_t n = s.scales();
    counters.require(n * kCounters * 8, "counters");
    extremes.require(n * 16, "extremes");
    limbs.require(n * Sketches::kMoments * kLimbs * 8, "limbs");
  }
};

struct StateSamples {
  Array<uint64_t> counts;
  Array<uint32_t> priorities;
  Array<float> values, tails;

  StateSamples(Array<uint64_t> a, Array<uint32_t> b, Array<float> c, Array<float> d)
      : counts(std::move(a)), priorities(std::move(b)), values(std::move(c)), tails(std::move(d)) {}
  void require_sizes_of(const Sketches& s) const {
    const int64_t n = s.scales();
    counts.require(n * s.bins() * 8, "counts");
    priorities.require(n * s.reservoir() * 4, "priorities");
    values.require(n * s.reservoir() * 4, "values");
    tails.require(static_cast<int64_t>(s.tails.size()) * 4, "tails");
  }
};

// Where each counter stands in a row of `counters`.
enum Counter {
  kN,
  kZeros,
  kSamples,
  kNan,
  kAbove,
  kBelow,
  kHash,
  kTop = 8,
  kLeast,
  kPositive,
  kNegative,
  kFinite,
  kHeld
};

void state(Sketches& self, const StateTotals& to, const StateSamples& samples) {
  to.require_sizes_of(self), samples.require_sizes_of(self);
  self.settle();
  const int64_t kept = self.reservoir();
  for (int64_t s = 0; s < self.scales(); ++s) {
    const SketchTotals& t = self.totals[s];
    const ExactSum* m = &self.moments[s * Sketches::kMoments];
    uint64_t finite = 0;
    for (int k = 0; k < Sketches::kMoments; ++k) {
      finite |= static_cast<uint64_t>(m[k].finite) << k;
      std::memcpy(to.limbs.data() + (s * Sketches::kMoments + k) * kLimbs, m[k].limb, sizeof m[k].limb);
    }
    uint64_t* c = to.counters.data() + s * kCounters;
    const int64_t counts[] = {t.n, t.zeros, t.samples, t.nan, t.above, t.below};
    for (int i = kN; i <= kBelow; ++i) c[i] = static_cast<uint64_t>(counts[i]);
    c[kHash] = t.hash[0], c[kHash + 1] = t.hash[1], c[kTop] = t.top, c[kLeast] = t.least;
    c[kPositive] = t.positive, c[kNegative] = t.negative, c[kFinite] = finite;
    c[kHeld] = static_cast<uint64_t>(self.held[s]), c[kHeld + 1] = 0;
    to.extremes.data()[2 * s] = t.lo, to.extremes.data()[2 * s + 1] = t.hi;
    for (int64_t i = 0; i < kept; ++i) {
      const Kept k = i < self.held[s] ? self.kept[s * kept + i] : Kept{0u, 0.0f};
      samples.priorities.data()[s * kept + i] = k.priority, samples.values.data()[s * kept + i] = k.value;
    }
  }
  if (!self.counts.empty()) std::memcpy(samples.counts.data(), self.counts.data(), self.counts.size() * 8);
  if (!self.tails.empty()) std::memcpy(samples.tails.data(), self.tails.data(), self.tails.size() * 4);
}

void restore(Sketches& self, const StateTotals& from, const StateSamples& samples) {
  from.require_sizes_of(self), samples.require_sizes_of(self);
  const int64_t kept = self.reservoir();
  for (int64_t s = 0; s < self.scales(); ++s) {
    const uint64_t* c = from.counters.data() + s * kCounters;
    if (c[kHeld] > static_cast<uint64_t>(kept) || c[kTop] > 0x7f7fffff || c[kLeast] > c[kTop] || c[kPositive] > 1 ||
        c[kNegative] > 1)
      throw nb::value_error("counters: not those of a sketch");
    SketchTotals& t = self.totals[s];
    int64_t* const counts[] = {&t.n, &t.zeros, &t.samples, &t.nan, &t.above, &t.below};
    for (int i = kN; i <= kBelow; ++i) *counts[i] = static_cast<int64_t>(c[i]);
    t.hash[0] = c[kHash], t.hash[1] = c[kHash + 1];
    t.top = static_cast<uint32_t>(c[kTop]), t.least = static_cast<uint32_t>(c[kLeast]);
    t.positive = c[kPositive] != 0, t.negative = c[kNegative] != 0;
    t.lo = from.extremes.data()[2 * s], t.hi = from.extremes.data()[2 * s + 1];
    self.held[s] = static_cast<int32_t>(c[kHeld]);
    for (int k = 0; k < Sketches::kMoments; ++k) {
      ExactSum& m = self.moments[s * Sketches::kMoments + k];
      std::memcpy(m.limb, from.limbs.data() + (s * Sketches::kMoments + k) * kLimbs, sizeof m.limb);
      m.finite = (c[kFinite] >> k & 1) != 0;
    }
    for (int64_t i = 0; i < self.held[s]; ++i)
      self.kept[s * kept + i] = {samples.priorities.data()[s * kept + i], samples.values.data()[s * kept + i]};
  }
  if (!self.counts.empty()) std::memcpy(self.counts.data(), samples.counts.data(), self.counts.size() * 8);
  if (!self.tails.empty()) std::memcpy(self.tails.data(), samples.tails.data(), self.tails.size() * 4);
  self.restored();
}

std::tuple<int, int32_t, int32_t> layout_of(const Sketches& self, int64_t scale) {
  if (scale < 0 || scale >= self.scales()) throw nb::value_error("scale: out of bounds");
  const BinLayout l = bin_layout(self.totals[scale], self.bins());
  return {l.shift, l.first, l.negative};
}

struct HistogramArrays {
  Array<const double> lower, upper, count;

  HistogramArrays(Array<const double> a, Array<const double> b, Array<const double> c)
      : lower(std::move(a)), upper(std::move(b)), count(std::move(c)) {
    upper.require(lower.bytes(), "upper"), count.require(lower.bytes(), "count");
  }
  Histogram histogram() const { return {lower.data(), upper.data(), count.data(), lower.size()}; }
};

std::vector<Mapping> mappings_of(const Array<const double>& scale, const Array<const int64_t>& least,
                                 const Array<const int64_t>& most) {
  least.require(scale.bytes(), "least"), most.require(scale.bytes(), "most");
  std::vector<Mapping> made;
  for (int64_t i = 0; i < scale.size(); ++i) {
    const Mapping m{scale.data()[i], least.data()[i], most.data()[i]};
    if (!(m.scale > 0) || m.most < m.least || static_cast<uint64_t>(m.most) - static_cast<uint64_t>(m.least) > 65535)
      throw nb::value_error("scale, least, most: not those of a mapping");
    made.push_back(m);
  }
  return made;
}

void squared_error_of(const HistogramArrays& h, const Array<const double>& scale, const Array<const int64_t>& least,
                      const Array<const int64_t>& most, const Array<double>& out) {
  const std::vector<Mapping> mappings = mappings_of(scale, least, most);
  out.require(scale.bytes(), "out");
  const GilReleased released;
  squared_error(h.histogram(), mappings.data(), static_cast<int64_t>(mappings.size()), out.data());
}

void divergence_of(const HistogramArrays& h, const Array<const double>& scale, const Array<const int64_t>& least,
                   const Array<const int64_t>& most, double floor, const Array<double>& out) {
  const std::vector<Mapping> mappings = mappings_of(scale, least, most);
  out.require(scale.bytes(), "out");
  const GilReleased released;
  divergence(h.histogram(), mappings.data(), static_cast<int64_t>(mappings.size()), floor, out.data());
}

}  // namespace

void bind_sketch(nb::module_& m) {
  nb::class_<StateTotals>(m, "SketchTotals", "The sums and counts of a state.")
      .def(nb::init<Array<uint64_t>, Array<double>, Array<int64_t>>(), "counters"_a, "extremes"_a, "limbs"_a);
  nb::class_<StateSamples>(m, "SketchSamples", "The histogram, the reservoir and the tails of a state.")
      .def(nb::init<Array<uint64_t>, Array<uint32_t>, Array<float>, Array<float>>(), "counts"_a, "priorities"_a,
           "values"_a, "tails"_a);
  nb::class_<Sketches>(m, "Sketches", "What streams of numbers look like, in fixed memory; one for each scale.")
      .def(
          "__init__",
          [](Sketches* self, int64_t scales, int64_t bins, int64_t reservoir) {
            product_of({scales, bins}, "scales, bins"), product_of({scales, reservoir}, "scales, reservoir");
            if ((bins != 0 && bins < 8) || bins > kMostBins || reservoir > kMostBins)
              throw nb::value_error("bins, reservoir: expected no bins, or 8 to 2^24, and at most 2^24 kept");
            new (self) Sketches(scales, bins, reservoir);
          },
          "scales"_a, "bins"_a, "reservoir"_a)
      .def_prop_ro("scales", &Sketches::scales)
      .def_prop_ro("bins", &Sketches::bins)
      .def_prop_ro("reservoir", &Sketches::reservoir)
      .def_prop_ro("nbytes", &Sketches::nbytes)
      .def("add", &add, "x"_a, "element"_a, "layout"_a, "skip"_a,
           "Returns how many NaN and Inf there are; unless they are to be skipped, then nothing was added.")
      .def("merge", &merge, "other"_a)
      .def("state", &state, "totals"_a, "samples"_a, "Writes the whole state.")
      .def("restore", &restore, "totals"_a, "samples"_a, "Takes over what `state` wrote.")
      .def(
          "bin_layout", &layout_of, "scale"_a,
          "(shift, first, negative): |x| is counted in bin (bits of |x| >> shift) - first, bin 0 and below being tiny; "
          "negative numbers `negative` further.");
  m.attr("sketch_counters") = kCounters;
  m.attr("sketch_limbs") = kLimbs;
  m.attr("sketch_tail") = kTail;
  m.attr("sketch_moments") = static_cast<int>(Sketches::kMoments);
  nb::class_<HistogramArrays>(m, "Histogram", "Counts of numbers spread evenly over bins [lower, upper).")
      .def(nb::init<Array<const double>, Array<const double>, Array<const double>>(), "lower"_a, "upper"_a, "count"_a);
  m.def("squared_error", &squared_error_of, "histogram"_a, "scale"_a, "least"_a, "most"_a, "out"_a,
        "Per mapping: the sum of squared errors.");
  m.def("divergence", &divergence_of, "histogram"_a, "scale"_a, "least"_a, "most"_a, "floor"_a, "out"_a,
        "Per mapping: the Kullback-Leibler divergence from the clipped numbers to what their codes tell.");
}

}  // namespace lowbit
