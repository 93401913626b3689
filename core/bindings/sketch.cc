// Sketches of streams, and what a histogram says of mappings.
#include "drivers/reduce/sketch.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/tuple.h>

#include <cstring>

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

struct State {
  Buffer counters, extremes, limbs, counts, priorities, values, tails;
  State(const Sketches& s, nb::handle a, nb::handle b, nb::handle c, nb::handle d, nb::handle e, nb::handle f,
        nb::handle g, bool write)
      : counters(a, "counters", write),
        extremes(b, "extremes", write),
        limbs(c, "limbs", write),
        counts(d, "counts", write),
        priorities(e, "priorities", write),
        values(f, "values", write),
        tails(g, "tails", write) {
    const int64_t n = s.scales();
    counters.require(n * kCounters * 8, "counters");
    extremes.require(n * 16, "extremes");
    limbs.require(n * Sketches::kMoments * kLimbs * 8, "limbs");
    counts.require(n * s.bins() * 8, "counts");
    priorities.require(n * s.reservoir() * 4, "priorities");
    values.require(n * s.reservoir() * 4, "values");
    tails.require(static_cast<int64_t>(s.tails.size()) * 4, "tails");
  }
};

void state(Sketches& self, nb::handle a, nb::handle b, nb::handle c, nb::handle d, nb::handle e, nb::handle f,
           nb::handle g) {
  const State to(self, a, b, c, d, e, f, g, true);
  self.settle();
  for (int64_t s = 0; s < self.scales(); ++s) {
    const SketchTotals& t = self.totals[s];
    const ExactSum* m = &self.moments[s * Sketches::kMoments];
    uint64_t finite = 0;
    for (int k = 0; k < Sketches::kMoments; ++k) {
      finite |= static_cast<uint64_t>(m[k].finite) << k;
      std::memcpy(to.limbs.as<int64_t>() + (s * Sketches::kMoments + k) * kLimbs, m[k].limb, sizeof m[k].limb);
    }
    const uint64_t counters[kCounters] = {static_cast<uint64_t>(t.n),
                                          static_cast<uint64_t>(t.zeros),
                                          static_cast<uint64_t>(t.samples),
                                          static_cast<uint64_t>(t.nan),
                                          static_cast<uint64_t>(t.above),
                                          static_cast<uint64_t>(t.below),
                                          t.hash[0],
                                          t.hash[1],
                                          t.top,
                                          t.least,
                                          t.positive,
                                          t.negative,
                                          finite,
                                          static_cast<uint64_t>(self.held[s]),
                                          0};
    std::memcpy(to.counters.as<uint64_t>() + s * kCounters, counters, sizeof counters);
    const double extremes[2] = {t.lo, t.hi};
    std::memcpy(to.extremes.as<double>() + 2 * s, extremes, sizeof extremes);
    for (int64_t i = 0; i < self.reservoir(); ++i) {
      const bool there = i < self.held[s];
      const Kept k = there ? self.kept[s * self.reservoir() + i] : Kept{0u, 0.0f};
      to.priorities.as<uint32_t>()[s * self.reservoir() + i] = k.priority;
      to.values.as<float>()[s * self.reservoir() + i] = k.value;
    }
  }
  if (!self.counts.empty()) std::memcpy(to.counts.as(), self.counts.data(), self.counts.size() * 8);
  if (!self.tails.empty()) std::memcpy(to.tails.as(), self.tails.data(), self.tails.size() * 4);
}

void restore(Sketches& self, nb::handle a, nb::handle b, nb::handle c, nb::handle d, nb::handle e, nb::handle f,
             nb::handle g) {
  const State from(self, a, b, c, d, e, f, g, false);
  for (int64_t s = 0; s < self.scales(); ++s) {
    uint64_t v[kCounters];
    std::memcpy(v, from.counters.as<uint64_t>() + s * kCounters, sizeof v);
    if (v[13] > static_cast<uint64_t>(self.reservoir()) || v[8] > 0x7f7fffff || v[9] > v[8] || v[10] > 1 || v[11] > 1)
      throw nb::value_error("counters: not those of a sketch");
    SketchTotals& t = self.totals[s];
    t.n = static_cast<int64_t>(v[0]), t.zeros = static_cast<int64_t>(v[1]), t.samples = static_cast<int64_t>(v[2]);
    t.nan = static_cast<int64_t>(v[3]), t.above = static_cast<int64_t>(v[4]), t.below = static_cast<int64_t>(v[5]);
    t.hash[0] = v[6], t.hash[1] = v[7], t.top = static_cast<uint32_t>(v[8]), t.least = static_cast<uint32_t>(v[9]);
    t.positive = v[10] != 0, t.negative = v[11] != 0;
    self.held[s] = static_cast<int32_t>(v[13]);
    double extremes[2];
    std::memcpy(extremes, from.extremes.as<double>() + 2 * s, sizeof extremes);
    t.lo = extremes[0], t.hi = extremes[1];
    for (int k = 0; k < Sketches::kMoments; ++k) {
      ExactSum& m = self.moments[s * Sketches::kMoments + k];
      std::memcpy(m.limb, from.limbs.as<int64_t>() + (s * Sketches::kMoments + k) * kLimbs, sizeof m.limb);
      m.finite = (v[12] >> k & 1) != 0;
    }
    for (int64_t i = 0; i < self.held[s]; ++i)
      self.kept[s * self.reservoir() + i] = {from.priorities.as<uint32_t>()[s * self.reservoir() + i],
                                             from.values.as<float>()[s * self.reservoir() + i]};
  }
  if (!self.counts.empty()) std::memcpy(self.counts.data(), from.counts.as(), self.counts.size() * 8);
  if (!self.tails.empty()) std::memcpy(self.tails.data(), from.tails.as(), self.tails.size() * 4);
  self.restored();
}

std::tuple<int, int32_t, int32_t> layout_of(const Sketches& self, int64_t scale) {
  if (scale < 0 || scale >= self.scales()) throw nb::value_error("scale: out of bounds");
  const BinLayout l = bin_layout(self.totals[scale], self.bins());
  return {l.shift, l.first, l.negative};
}

struct Scored {
  Buffer lower, upper, count, scale, least, most, out;
  Histogram histogram;
  std::vector<Mapping> mappings;
  Scored(nb::handle a, nb::handle b, nb::handle c, nb::handle s, nb::handle l, nb::handle m, nb::handle o)
      : lower(a, "lower"),
        upper(b, "upper"),
        count(c, "count"),
        scale(s, "scale"),
        least(l, "least"),
        most(m, "most"),
        out(o, "out", true) {
    const int64_t n = scale.bytes() / 8;
    upper.require(lower.bytes(), "upper");
    count.require(lower.bytes(), "count");
    least.require(n * 8, "least");
    most.require(n * 8, "most");
    out.require(n * 8, "out");
    histogram = {lower.as<double>(), upper.as<double>(), count.as<double>(), lower.bytes() / 8};
    for (int64_t i = 0; i < n; ++i) {
      mappings.push_back({scale.as<double>()[i], least.as<int64_t>()[i], most.as<int64_t>()[i]});
      if (!(mappings[i].scale > 0) || mappings[i].most < mappings[i].least ||
          static_cast<uint64_t>(mappings[i].most) - static_cast<uint64_t>(mappings[i].least) > 65535)
        throw nb::value_error("scale, least, most: not those of a mapping");
    }
  }
};

}  // namespace

void bind_sketch(nb::module_& m) {
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
      .def("state", &state, "counters"_a, "extremes"_a, "limbs"_a, "counts"_a, "priorities"_a, "values"_a, "tails"_a,
           "Writes all there is.")
      .def("restore", &restore, "counters"_a, "extremes"_a, "limbs"_a, "counts"_a, "priorities"_a, "values"_a,
           "tails"_a, "Takes over what `state` wrote.")
      .def(
          "bin_layout", &layout_of, "scale"_a,
          "(shift, first, negative): |x| is counted in bin (bits of |x| >> shift) - first, bin 0 and below being tiny; "
          "negative numbers `negative` further.");
  m.attr("sketch_counters") = kCounters;
  m.attr("sketch_limbs") = kLimbs;
  m.attr("sketch_tail") = kTail;
  m.attr("sketch_moments") = static_cast<int>(Sketches::kMoments);
  m.def(
      "squared_error",
      [](nb::handle a, nb::handle b, nb::handle c, nb::handle s, nb::handle l, nb::handle h, nb::handle o) {
        const Scored args(a, b, c, s, l, h, o);
        const GilReleased released;
        squared_error(args.histogram, args.mappings.data(), static_cast<int64_t>(args.mappings.size()),
                      args.out.as<double>());
      },
      "lower"_a, "upper"_a, "count"_a, "scale"_a, "least"_a, "most"_a, "out"_a,
      "Of each mapping: the sum of squared errors of numbers spread evenly over bins [lower, upper).");
  m.def(
      "divergence",
      [](nb::handle a, nb::handle b, nb::handle c, nb::handle s, nb::handle l, nb::handle h, double floor,
         nb::handle o) {
        const Scored args(a, b, c, s, l, h, o);
        const GilReleased released;
        divergence(args.histogram, args.mappings.data(), static_cast<int64_t>(args.mappings.size()), floor,
                   args.out.as<double>());
      },
      "lower"_a, "upper"_a, "count"_a, "scale"_a, "least"_a, "most"_a, "floor"_a, "out"_a,
      "Of each mapping: the Kullback-Leibler divergence from the clipped numbers to what codes tell of them.");
}

}  // namespace lowbit
