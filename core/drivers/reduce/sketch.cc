#include "drivers/reduce/sketch.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "base/fp_environment.h"
#include "base/threads.h"
#include "drivers/elementwise/elementwise.h"

namespace lowbit {
namespace {

constexpr int64_t kParallel = 1 << 17;    // elements from which several threads pay
constexpr int64_t kCheckFirst = 1 << 14;  // up to here a range over all of it costs less than a copy of the sketch

// Least and greatest of each scale, as doubles.
struct Ranges {
  std::vector<double> lo, hi;
  int64_t nan = 0;
  Ranges(const Granularity& layout, const void* x, Element in) : lo(layout.scales()), hi(layout.scales()) {
    if (layout.elements() == 0) return;
    if (in == Element::f64) {
      nan = range(layout, x, in, lo.data(), hi.data());
      return;
    }
    std::vector<float> least(lo.size()), greatest(hi.size());
    nan = range(layout, x, in, least.data(), greatest.data());
    lo.assign(least.begin(), least.end()), hi.assign(greatest.begin(), greatest.end());
  }
  int64_t bad() const {
    int64_t found = nan;
    for (size_t i = 0; i < lo.size(); ++i) found += std::isinf(lo[i]) || std::isinf(hi[i]);
    return found;
  }
};

}  // namespace

SketchState::SketchState(int64_t scales, int64_t bins, int64_t reservoir)
    : totals(scales),
      moments(scales * kMoments),
      counts(scales * bins),
      tails(bins == 0 ? 0 : scales * 2 * kTail),
      tailed(scales * 2),
      kept(scales * reservoir),
      held(scales),
      layouts(scales) {}

void Sketches::restored() {
  for (int64_t s = 0; s < scales(); ++s) {
    layouts[s] = bin_layout(totals[s], bins_);
    tailed[2 * s] = tailed[2 * s + 1] = bins_ == 0 ? 0 : static_cast<int32_t>(std::min(totals[s].n, kTail));
  }
}

int64_t Sketches::nbytes() const {
  return static_cast<int64_t>(totals.size() * sizeof(SketchTotals) + moments.size() * sizeof(ExactSum) +
                              counts.size() * sizeof(uint64_t) + tails.size() * sizeof(float) +
                              kept.size() * sizeof(Kept) + held.size() * sizeof(int32_t));
}

int64_t Sketches::bad() const {
  int64_t bad = 0;
  for (const SketchTotals& t : totals) bad += t.nan + t.above + t.below;
  return bad;
}

// Moves counts to where they belong once the totals are `to`.
void Sketches::grow(int64_t scale, const SketchTotals& to) {
  SketchTotals& t = totals[scale];
  if (t.top == to.top && t.least == to.least && t.positive == to.positive && t.negative == to.negative) return;
  const BinLayout now = bin_layout(to, bins_);
  if (!(layouts[scale] == now)) {
    uint64_t* c = counts.data() + scale * bins_;
    const std::vector<uint64_t> from(c, c + bins_);
    std::fill(c, c + bins_, 0);
    add_counts(t, from.data(), to, c, bins_);
  }
  layouts[scale] = now;
  t = to;
}

// Counts an array's extremes, if it has any number.
void Sketches::add_sample(int64_t scale, const Extremes& seen) {
  if (!(seen.lo <= seen.hi)) return;
  ++totals[scale].samples;
  moments[scale * kMoments + kLow].add(seen.lo);
  moments[scale * kMoments + kHigh].add(seen.hi);
}

// Ranges and counts alone.
int64_t Sketches::add_range(const Granularity& layout, const void* x, Element in) {
  const Ranges found(layout, x, in);
  if (layout.elements() == 0) return 0;
  if (const int64_t bad = found.bad(); bad != 0) return bad;
  for (int64_t s = 0; s < scales(); ++s) {
    const int64_t group = layout.kind == GranularityKind::group ? s / layout.inner % layout.groups() : 0;
    SketchTotals& t = totals[s];
    t.n += layout.kind == GranularityKind::group ? std::min(layout.block, layout.axis - group * layout.block)
                                                 : layout.elements() / layout.scales();
    t.include(found.lo[s], found.hi[s]);
    add_sample(s, {found.lo[s], found.hi[s]});
  }
  return 0;
}

int64_t Sketches::add(const Granularity& layout, const void* x, Element in, bool skip) {
  const std::lock_guard<std::mutex> lock(mutex);
  if (bins_ == 0) return add_range(layout, x, in);
  const int64_t n = layout.elements(), had = bad();
  if (!skip && (scales() > 1 || n <= kCheckFirst)) {
    Granularity whole;
    whole.inner = n;
    if (const int64_t found = Ranges(whole, x, in).bad(); found != 0) return found;
    skip = true;
  }
  const int64_t units = scales() > 1 ? scales() : (n + kSumBlock - 1) / kSumBlock;
  const int64_t tasks = n < kParallel ? 1 : std::min<int64_t>(num_threads(), units);
  if (scales() > 1) {
    parallel_for(tasks, [&](int64_t t) { run_scales(layout, x, in, units * t / tasks, units * (t + 1) / tasks); });
    return bad() - had;
  }
  if (tasks > 1) return add_parallel(x, in, n, tasks, skip);
  const FpEnvironment environment;
  static thread_local SketchState before(1, 0, 0);
  if (!skip) before = *this;
  const Extremes seen = run(0, x, in, n);
  const int64_t found = bad() - had;
  if (found != 0 && !skip) {
    static_cast<SketchState&>(*this) = before;
    return found;
  }
  add_sample(0, seen);
  return found;
}

// Each task fills a sketch of its own, so that this one does not change if x turns out to have NaN or Inf.
int64_t Sketches::add_parallel(const void* x, Element in, int64_t n, int64_t tasks, bool skip) {
  const int64_t blocks = (n + kSumBlock - 1) / kSumBlock;
  const SketchTotals& t = totals[0];
  std::vector<std::unique_ptr<Sketches>> parts;
  for (int64_t i = 0; i < tasks; ++i) {
    // A part keeps nothing that this sketch would drop, and counts in bins that cover both.
    Sketches& part = *parts.emplace_back(std::make_unique<Sketches>(1, bins_, reservoir_));
    part.floor_ = floor(0);
    part.grow(0, covering(part.totals[0], t.top, t.least, t.positive, t.negative));
    if (t.n >= kTail) part.tail_floor_[0] = tails[kTail - 1], part.tail_floor_[1] = tails[2 * kTail - 1];
  }
  std::vector<Extremes> seen(tasks);
  parallel_for(tasks, [&](int64_t i) {
    const int64_t first = blocks * i / tasks * kSumBlock, last = std::min(n, blocks * (i + 1) / tasks * kSumBlock);
    seen[i] = parts[i]->run(0, static_cast<const char*>(x) + first * element_bytes(in), in, last - first);
  });
  int64_t found = 0;
  for (const auto& part : parts) found += part->bad();
  if (found != 0 && !skip) return found;
  Extremes all;
  for (int64_t i = 0; i < tasks; ++i) merge(0, *parts[i]), all.include(seen[i].lo, seen[i].hi);
  add_sample(0, all);
  return found;
}

void Sketches::merge(int64_t scale, const Sketches& other) {
  SketchTotals& t = totals[scale];
  const SketchTotals& o = other.totals[scale];
  grow(scale, covering(t, o.top, o.least, o.positive, o.negative));
  if (o.n != 0) add_counts(o, other.counts.data() + scale * bins_, t, counts.data() + scale * bins_, bins_);
  if (bins_ != 0) {
    const float* theirs = other.tails.data() + scale * 2 * kTail;
    const int32_t* count = other.tailed.data() + scale * 2;
    extend_tails(scale, theirs, count[0], theirs + kTail, count[1]);
  }
  t.n += o.n, t.zeros += o.zeros, t.samples += o.samples;
  t.nan += o.nan, t.above += o.above, t.below += o.below;
  t.hash[0] += o.hash[0], t.hash[1] += o.hash[1];
  t.include(o.lo, o.hi);
  for (int k = 0; k < kMoments; ++k) moments[scale * kMoments + k].add(other.moments[scale * kMoments + k]);
  for (int32_t i = 0; i < other.held[scale]; ++i) keep(scale, other.kept[scale * reservoir_ + i]);
}

void Sketches::add(const Sketches& other) {
  const std::scoped_lock lock(mutex, const_cast<std::mutex&>(other.mutex));
  for (int64_t s = 0; s < scales(); ++s) merge(s, other);
}

void Sketches::settle() {
  const std::lock_guard<std::mutex> lock(mutex);
  for (ExactSum& m : moments) m.normalize();
  for (int64_t s = 0; s < scales(); ++s) {
    std::sort(kept.data() + s * reservoir_, kept.data() + s * reservoir_ + held[s],
              [](const Kept& a, const Kept& b) { return is_before(b, a); });  // ascending: still a heap
    const BinLayout l = bin_layout(totals[s], bins_);
    if (l.negative == 0) continue;
    uint64_t* c = counts.data() + s * bins_;
    c[0] += c[l.negative];
    c[l.negative] = 0;
  }
}

}  // namespace lowbit
