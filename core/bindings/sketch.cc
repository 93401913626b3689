// Sketches of streams, and the errors of mappings on a histogram.
#include "drivers/reduce/sketch.h"

#include <cstring>

#include "bindings/bindings.h"
#include "drivers/reduce/scores.h"

namespace lowbit {
namespace {

constexpr int64_t kCounters = 15;
constexpr int64_t kMostBins = 1 << 24;
constexpr int64_t kLimbs = ExactSum::kLimbs;

int64_t add(Sketches& self, const Array<const void>& x, Element in, const Granularity& layout, bool skip) {
  x.require(layout.elements() * element_bytes(in), "x");
  if (layout.scales() != self.scales()) throw nb::value_error("layout: another number of scales");
  const GilReleased released;
  return self.add(layout, x.as(), in, skip);
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
};

struct StateSamples {
  Array<uint64_t> counts;
  Array<uint32_t> priorities;
  Array<float> values, tails;
};

void require_sizes_of(const Sketches& s, const StateTotals& totals, const StateSamples& samples) {
  const int64_t n = s.scales();
  totals.counters.require(n * kCounters * 8, "counters");
  totals.extremes.require(n * 16, "extremes");
  totals.limbs.require(n * Sketches::kMoments * kLimbs * 8, "limbs");
  samples.counts.require(n * s.bins() * 8, "counts");
  samples.priorities.require(n * s.reservoir() * 4, "priorities");
  samples.values.require(n * s.reservoir() * 4, "values");
  samples.tails.require(static_cast<int64_t>(s.tails.size()) * 4, "tails");
}

// Indices in a row of `counters` that `restore` checks.
constexpr int kTop = 8, kLeast = 9, kPositive = 10, kNegative = 11, kHeld = 13;

// Calls move(field, stored) for every number of the state and its place in the arrays.
template <class Move>
void move_state(Sketches& self, const StateTotals& totals, const StateSamples& samples, Move&& move) {
  for (int64_t s = 0; s < self.scales(); ++s) {
    SketchTotals& t = self.totals[s];
    uint64_t* c = totals.counters.data() + s * kCounters;
    for (int64_t* count : {&t.n, &t.zeros, &t.samples, &t.nan, &t.above, &t.below}) move(*count, *c++);
    move(t.hash[0], *c++), move(t.hash[1], *c++), move(t.top, *c++), move(t.least, *c++);
    move(t.positive, *c++), move(t.negative, *c++);
    ExactSum* moments = &self.moments[s * Sketches::kMoments];
    uint64_t finite = 0;  // a bit per moment
    for (int k = 0; k < Sketches::kMoments; ++k) finite |= static_cast<uint64_t>(moments[k].finite) << k;
    move(finite, *c++);
    int64_t* limb = totals.limbs.data() + s * Sketches::kMoments * kLimbs;
    for (int k = 0; k < Sketches::kMoments; ++k) {
      moments[k].finite = (finite >> k & 1) != 0;
      for (int64_t& l : moments[k].limb) move(l, *limb++);
    }
    move(self.held[s], *c++);
    move(t.lo, totals.extremes.data()[2 * s]), move(t.hi, totals.extremes.data()[2 * s + 1]);
    for (int64_t i = s * self.reservoir(); i < s * self.reservoir() + self.held[s]; ++i)
      move(self.kept[i].priority, samples.priorities.data()[i]), move(self.kept[i].value, samples.values.data()[i]);
  }
  for (size_t i = 0; i < self.counts.size(); ++i) move(self.counts[i], samples.counts.data()[i]);
  for (size_t i = 0; i < self.tails.size(); ++i) move(self.tails[i], samples.tails.data()[i]);
}

void state(Sketches& self, const StateTotals& to, const StateSamples& samples) {
  require_sizes_of(self, to, samples);
  self.settle();
  // What no number is moved to is 0: the last counter, and places of the reservoir that hold no sample.
  for (const Buffer* b : {static_cast<const Buffer*>(&to.counters), static_cast<const Buffer*>(&samples.priorities),
                          static_cast<const Buffer*>(&samples.values)})
    if (b->bytes() > 0) std::memset(b->as(), 0, static_cast<size_t>(b->bytes()));
  move_state(self, to, samples, []<class F, class S>(const F& field, S& stored) { stored = static_cast<S>(field); });
}

void restore(Sketches& self, const StateTotals& from, const StateSamples& samples) {
  require_sizes_of(self, from, samples);
  for (int64_t s = 0; s < self.scales(); ++s) {
    const uint64_t* c = from.counters.data() + s * kCounters;
    if (c[kHeld] > static_cast<uint64_t>(self.reservoir()) || c[kTop] > 0x7f7fffff || c[kLeast] > c[kTop] ||
        c[kPositive] > 1 || c[kNegative] > 1)
      throw nb::value_error("counters: not those of a sketch");
  }
  move_state(self, from, samples, []<class F, class S>(F& field, const S& stored) { field = static_cast<F>(stored); });
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
  nb::class_<Sketches>(m, "Sketches", "Statistics of streams of numbers in fixed memory, one sketch per scale.")
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
        "Per mapping: the Kullback-Leibler divergence of the quantized distribution from the clipped one.");
}

}  // namespace lowbit
