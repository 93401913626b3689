#include "drivers/reduce/sketch.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>

#include "base/fp_environment.h"
#include "base/memory.h"
#include "base/threads.h"
#include "drivers/elementwise/elementwise.h"
#include "simd/vec.h"

namespace lowbit {
namespace {

constexpr int64_t kBlock = kSumBlock;
constexpr int64_t kParallel = 1 << 17;   // elements from which several threads pay
constexpr int64_t kLookFirst = 1 << 14;  // up to here a look at all of it costs less than a copy of the sketch
constexpr int64_t kTile = 16;            // columns turned to rows at once
constexpr int64_t kNormalizeAt = 1 << 20;

bool before(const Kept& a, const Kept& b) {  // a total order but for equals; the heap's first is the least
  if (a.priority != b.priority) return a.priority > b.priority;
  return float_to_bits(a.value) > float_to_bits(b.value);
}

float narrowed(double x) {  // an Inf stays one, a large number does not become one
  constexpr double most = std::numeric_limits<float>::max();
  return std::isfinite(x) ? static_cast<float>(std::clamp(x, -most, most)) : static_cast<float>(x);
}

template <class F>
void visit(Element in, F&& f) {
  switch (in) {
    case Element::f32:
      return f(float{});
    case Element::f64:
      return f(double{});
    case Element::f16:
      return f(half_t{});
    case Element::bf16:
      return f(bfloat_t{});
  }
}

// The same sums as the kernel's, of doubles. Returns the number of zeros.
int64_t wide_stats(const double* x, int64_t n, BlockStats& s, double& lo, double& hi) {
  double sums[kPowers][8] = {};
  int64_t zeros = 0;
  for (int64_t i = 0; i < n; ++i) {
    const double d = x[i];
    const int64_t k = i % 8;
    sums[0][k] += d, sums[1][k] += d * d, sums[2][k] += std::fabs(d);
    lo = std::min(lo, d), hi = std::max(hi, d);
    zeros += d == 0;
  }
  for (int k = 0; k < kPowers; ++k) {
    const double* v = sums[k];
    s.sum[k] = ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
    uint64_t bits;
    std::memcpy(&bits, &s.sum[k], 8);
    s.hash = (s.hash ^ bits) * 0x9e3779b97f4a7c15ull;  // what rounding to f32 lost still counts
  }
  lo += 0.0, hi += 0.0;
  return zeros;
}

}  // namespace

// ---- ExactSum ------------------------------------------------------------------------------------------------------

void ExactSum::add(double x) {
  uint64_t bits;
  std::memcpy(&bits, &x, 8);
  const int exponent = static_cast<int>(bits >> 52 & 0x7ff);
  if (exponent == 0x7ff) {
    finite = false;
    return;
  }
  const uint64_t fraction = bits & ((uint64_t{1} << 52) - 1);
  const uint64_t mantissa = exponent == 0 ? fraction : fraction | uint64_t{1} << 52;
  const int at = std::max(exponent, 1) - 1;
  const unsigned __int128 shifted = static_cast<unsigned __int128>(mantissa) << (at % 32);
  const int64_t sign = bits >> 63 ? -1 : 1;
  for (int i = 0; i < 3; ++i)
    limb[at / 32 + i] += sign * static_cast<int64_t>(static_cast<uint32_t>(shifted >> (32 * i)));
  if (++pending_ >= kNormalizeAt) normalize();
}

void ExactSum::add(const ExactSum& other) {
  for (int i = 0; i < kLimbs; ++i) limb[i] += other.limb[i];
  finite = finite && other.finite;
  pending_ += other.pending_ + 1;
  if (pending_ >= kNormalizeAt) normalize();
}

void ExactSum::normalize() {
  int64_t carry = 0;
  for (int i = 0; i + 1 < kLimbs; ++i) {
    const int64_t v = limb[i] + carry;
    limb[i] = v & 0xffffffff;
    carry = v >> 32;
  }
  limb[kLimbs - 1] += carry;
  pending_ = 0;
}

// ---- the histogram -------------------------------------------------------------------------------------------------

namespace {

// Whether bins end above the least number there is.
bool is_capped(const SketchTotals& t) {
  return static_cast<int32_t>(t.top >> 23) - static_cast<int32_t>(t.least >> 23) > kOctaves;
}

}  // namespace

BinLayout bin_layout(const SketchTotals& t, int64_t bins) {
  if (t.top == 0) return {};
  const bool both = t.positive && t.negative, capped = is_capped(t);
  const int64_t half = both ? bins / 2 : bins;
  // Aligned to an octave where it is not the least |x| itself, so that no bin of any shift lies across it.
  const uint32_t base = capped ? ((t.top >> 23) - kOctaves) << 23 : t.least;
  const int64_t span = capped ? int64_t{kOctaves + 1} << 23 : static_cast<int64_t>(t.top) - t.least;
  BinLayout l;
  while ((span >> l.shift) + 3 > half) ++l.shift;
  // Never so low that a zero, whose bits are 0, would not come first: the smallest numbers of all are tiny then too.
  l.first = std::max(static_cast<int32_t>(base >> l.shift) - 1, 0);
  l.negative = both ? static_cast<int32_t>(half) : 0;
  return l;
}

namespace {

// Adds counts laid out for `from` to counts laid out for `to`, which covers more.
void fold(const SketchTotals& from, const uint64_t* counts, const SketchTotals& to, uint64_t* into, int64_t bins) {
  const BinLayout old = bin_layout(from, bins), now = bin_layout(to, bins);
  if (old == now && from.positive == to.positive) {  // the same places
    for (int64_t i = 0; i < bins; ++i) into[i] += counts[i];
    return;
  }
  const int64_t half = old.negative != 0 ? old.negative : bins;
  for (int64_t i = 0; i < bins; ++i) {
    if (counts[i] == 0) continue;
    const int64_t at = i % half, bits = (at + old.first) << old.shift;
    const int64_t bin = at == 0 ? 0 : (bits >> now.shift) - now.first;  // tiny ones of either sign stay tiny
    const bool negative = old.negative != 0 ? i >= half : !from.positive;
    into[bin > 0 ? bin + (negative ? now.negative : 0) : 0] += counts[i];
  }
}

SketchTotals covering(SketchTotals t, uint32_t top, uint32_t least, bool positive, bool negative) {
  t.top = std::max(t.top, top);
  t.least = least == 0 ? t.least : t.least == 0 ? least : std::min(t.least, least);
  t.positive |= positive, t.negative |= negative;
  return t;
}

}  // namespace

// Moves counts to where they belong once the totals are `to`.
void Sketches::grow(int64_t scale, const SketchTotals& to) {
  SketchTotals& t = totals[scale];
  if (t.top == to.top && t.least == to.least && t.positive == to.positive && t.negative == to.negative) return;
  const BinLayout now = bin_layout(to, bins_);
  if (!(layouts[scale] == now)) {
    uint64_t* c = counts.data() + scale * bins_;
    const std::vector<uint64_t> from(c, c + bins_);
    std::fill(c, c + bins_, 0);
    fold(t, from.data(), to, c, bins_);
  }
  layouts[scale] = now;
  t = to;
}

// ---- the reservoir -------------------------------------------------------------------------------------------------

// The elements of a block have places j: a permutation of 0 .. kBlock - 1 that the seed picks. Priorities are uniform
// over 32 bits and follow the place: j with t zeros at the end, of which there is one in 2^(t + 1), takes its priority
// from the t-th of the intervals [1 - 2^-t, 1 - 2^-(t + 1)). So those above a floor are found without a look at most.
namespace {

constexpr uint32_t kPlaces = static_cast<uint32_t>(kBlock);
constexpr int kPlaceBits = std::countr_zero(kPlaces);

struct Places {
  uint32_t a, b, c;
  explicit Places(uint64_t hash)
      : a(static_cast<uint32_t>(hash) | 1),
        b(static_cast<uint32_t>(hash >> 20)),
        c(static_cast<uint32_t>(hash >> 40) | 1) {}
  // Each step can be undone modulo kPlaces: no two places have the same element.
  uint32_t element(uint32_t j) const {
    uint32_t e = (j * a + b) % kPlaces;
    e ^= e >> (kPlaceBits / 2);
    e = e * c % kPlaces;
    return e ^ e >> (kPlaceBits / 2 + 1);
  }
  uint32_t priority(uint32_t j) const {
    const int zeros = j == 0 ? kPlaceBits : std::countr_zero(j);
    const uint32_t within = (j ^ b) * 0x9e3779b1u ^ (a * 0x85ebca77u);
    const uint32_t mixed = (within ^ within >> 15) * 0xc2b2ae3du;
    const uint32_t start = zeros == 0 ? 0 : ~uint32_t{0} << (32 - zeros);
    return start + (mixed >> std::min(zeros + 1, kPlaceBits));
  }
};

}  // namespace

uint32_t Sketches::floor(int64_t scale) const {
  return reservoir_ > 0 && held[scale] == reservoir_ ? std::max(floor_, kept[scale * reservoir_].priority) : floor_;
}

void Sketches::sample(int64_t scale, const float* x, int64_t n, uint64_t hash) {
  if (reservoir_ == 0) return;
  const Places places(hash);
  const int level = std::min(std::countl_one(floor(scale)), kPlaceBits);
  for (uint32_t j = 0; j < kPlaces; j += uint32_t{1} << level) {
    const uint32_t e = places.element(j);
    if (e >= n) continue;
    const uint32_t p = places.priority(j);
    if (p >= floor(scale)) keep(scale, {p, x[e]});
  }
}

void Sketches::keep(int64_t scale, Kept k) {
  Kept* heap = kept.data() + scale * reservoir_;
  int32_t& size = held[scale];
  if (size < reservoir_) {
    heap[size++] = k;
    if (size == reservoir_) std::make_heap(heap, heap + size, before);
    return;
  }
  if (!before(k, heap[0])) return;
  // In place of the least: the better child moves up until k's place is found.
  int64_t at = 0;
  for (int64_t child; (child = 2 * at + 1) < size; at = child) {
    if (child + 1 < size && before(heap[child], heap[child + 1])) ++child;
    if (!before(k, heap[child])) break;
    heap[at] = heap[child];
  }
  heap[at] = k;
}

// ---- the tails -----------------------------------------------------------------------------------------------------

namespace {

// Puts those of x that belong to the first kTail in order `ahead`, of which there are *had.
template <class Ahead>
void extend(float* tail, int32_t* had, const float* x, int64_t n, float floor, Ahead ahead) {
  float some[kBlock + kTail];
  int64_t size = std::copy(tail, tail + *had, some) - some;
  const float last = *had == kTail && ahead(tail[kTail - 1], floor) ? tail[kTail - 1] : floor;
  for (int64_t i = 0; i < n; ++i) {
    some[size] = x[i] + 0.0f;
    size += ahead(x[i], last);
  }
  *had = static_cast<int32_t>(std::min(kTail, size));
  if (size > kTail) std::nth_element(some, some + kTail - 1, some + size, ahead);
  std::sort(some, some + *had, ahead);
  std::copy(some, some + *had, tail);
}

}  // namespace

void Sketches::extend_tails(int64_t scale, const float* greatest, int64_t n, const float* least, int64_t m) {
  float* tail = tails.data() + scale * 2 * kTail;
  int32_t* had = tailed.data() + scale * 2;
  if (n > 0) extend(tail, had, greatest, n, tail_floor_[0], std::greater<float>());
  if (m > 0) extend(tail + kTail, had + 1, least, m, tail_floor_[1], std::less<float>());
}

// ---- adding --------------------------------------------------------------------------------------------------------

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

CountArgs Sketches::args(int64_t scale, const float* x, int64_t n) {
  const BinLayout& l = layouts[scale];
  const int32_t half = l.negative != 0 ? l.negative : static_cast<int32_t>(bins_);
  return {x, n, l.shift, l.first, half - 1, l.negative, 1, counts.data() + scale * bins_};
}

// How many are counted below the first bin: zeros, and what is too small for any.
int64_t Sketches::tiny(int64_t scale) const {
  const uint64_t* c = counts.data() + scale * bins_;
  const int32_t negative = layouts[scale].negative;
  return static_cast<int64_t>(c[0] + (negative != 0 ? c[negative] : 0));
}

namespace {

void take_back(const SketchRow& row, CountArgs args) {
  args.by = ~uint64_t{0};
  row.count(args);
}

}  // namespace

void Sketches::block(int64_t scale, const float* x, int64_t n, const double* wide, double& lo, double& hi) {
  const SketchRow& row = sketch_rows(active_isa()).front();
  SketchTotals& t = totals[scale];
  BlockStats s;
  const CountArgs here = args(scale, x, n);
  int64_t zeros = -tiny(scale);
  row.stats_and_count(here, s);
  if (!std::isfinite(s.sum[0])) {  // at leisure: count what is no number, and go on with the rest
    take_back(row, here);
    std::vector<float> left;
    std::vector<double> left_wide;
    for (int64_t i = 0; i < n; ++i) {
      if (std::isfinite(x[i])) {
        left.push_back(x[i]);
        if (wide != nullptr) left_wide.push_back(wide[i]);
      } else {
        ++(std::isnan(x[i]) ? t.nan : x[i] > 0 ? t.above : t.below);
      }
    }
    if (!left.empty())
      block(scale, left.data(), static_cast<int64_t>(left.size()), wide != nullptr ? left_wide.data() : nullptr, lo,
            hi);
    return;
  }
  double block_lo = s.lo, block_hi = s.hi;
  int64_t wide_zeros = 0;
  if (wide != nullptr) {
    block_lo = __builtin_inf(), block_hi = -block_lo;
    wide_zeros = wide_stats(wide, n, s, block_lo, block_hi);
  }
  const SketchTotals to = covering(t, s.top, s.least, s.hi > 0, s.lo < 0);
  if (bin_layout(to, bins_) == layouts[scale]) {
    grow(scale, to);
  } else {  // counted where it does not belong
    take_back(row, here);
    grow(scale, to);
    zeros = -tiny(scale);
    row.count(args(scale, x, n));
  }
  zeros += tiny(scale);
  const bool some_are_small = is_capped(t) || t.least >> layouts[scale].shift == 0;
  if (zeros != 0 && some_are_small) zeros = std::count(x, x + n, 0.0f);
  const float* tail = tails.data() + scale * 2 * kTail;
  const int32_t* had = tailed.data() + scale * 2;
  const bool above = s.hi > (had[0] == kTail ? std::max(tail_floor_[0], tail[kTail - 1]) : tail_floor_[0]);
  const bool below = s.lo < (had[1] == kTail ? std::min(tail_floor_[1], tail[2 * kTail - 1]) : tail_floor_[1]);
  extend_tails(scale, x, above ? n : 0, x, below ? n : 0);
  t.n += n, t.zeros += wide != nullptr ? wide_zeros : zeros;
  t.lo = std::min(t.lo, block_lo), t.hi = std::max(t.hi, block_hi);
  lo = std::min(lo, block_lo), hi = std::max(hi, block_hi);
  t.hash[0] += s.hash, t.hash[1] += (s.hash ^ s.hash >> 31) * 0xd6e8feb86659fd93ull;
  ExactSum* m = moments.data() + scale * kMoments;
  for (int k = 0; k < kPowers; ++k) m[k].add(s.sum[k]);
  sample(scale, x, n, s.hash);
}

void Sketches::run(int64_t scale, const void* x, Element in, int64_t n, double& lo, double& hi) {
  visit(in, [&](auto kind) {
    using In = decltype(kind);
    const In* p = static_cast<const In*>(x);
    if constexpr (std::is_same_v<In, float>) {
      for (int64_t i = 0; i < n; i += kBlock) block(scale, p + i, std::min(kBlock, n - i), nullptr, lo, hi);
    } else {
      alignas(64) float rounded[kBlock];
      for (int64_t i = 0; i < n; i += kBlock) {
        const int64_t m = std::min(kBlock, n - i);
        const double* wide = nullptr;
        if constexpr (std::is_same_v<In, double>) {
          wide = p + i;
          for (int64_t j = 0; j < m; ++j) rounded[j] = narrowed(p[i + j]);
        } else {
          const SketchRow& row = sketch_rows(active_isa()).front();
          (std::is_same_v<In, half_t> ? row.widen_half : row.widen_bfloat)(p + i, m, rounded);
        }
        block(scale, rounded, m, wide, lo, hi);
      }
    }
  });
}

// Scales [first, last) of an array.
void Sketches::layout_run(const Granularity& layout, const void* x, Element in, int64_t first, int64_t last) {
  const int64_t bytes = element_bytes(in);
  const char* data = static_cast<const char*>(x);
  std::vector<double> lo(last - first, __builtin_inf()), hi(last - first, -__builtin_inf());
  std::vector<char> tile;
  for_each_segment(
      layout, 0, layout.elements(),
      [&](int64_t start, int64_t length, int64_t count, int64_t scale) {
        for (int64_t g = std::max<int64_t>(0, first - scale); g < std::min(count, last - scale); ++g)
          run(scale + g, data + (start + g * length) * bytes, in, length, lo[scale + g - first], hi[scale + g - first]);
      },
      [&](int64_t start, int64_t rows, int64_t stride, int64_t columns, int64_t scale) {
        if (tile.empty()) tile.resize(kTile * kBlock * bytes);
        const int64_t end = std::min(columns, last - scale);
        for (int64_t c = std::max<int64_t>(0, first - scale); c < end; c += kTile) {
          const int64_t wide = std::min(kTile, end - c);
          for (int64_t r = 0; r < rows; r += kBlock) {
            const int64_t high = std::min(kBlock, rows - r);
            const auto turn = [&](auto kind) {
              using Word = decltype(kind);
              for (int64_t i = 0; i < high; ++i) {
                const char* from = data + (start + (r + i) * stride + c) * bytes;
                for (int64_t j = 0; j < wide; ++j)
                  std::memcpy(tile.data() + (j * kBlock + i) * bytes, from + j * bytes, sizeof(Word));
              }
            };
            if (bytes == 4) turn(uint32_t{});
            if (bytes == 8) turn(uint64_t{});
            if (bytes == 2) turn(uint16_t{});
            for (int64_t j = 0; j < wide; ++j) {
              const int64_t s = scale + c + j;
              run(s, tile.data() + j * kBlock * bytes, in, high, lo[s - first], hi[s - first]);
            }
          }
        }
      });
  for (int64_t s = first; s < last; ++s) {
    if (!(lo[s - first] <= hi[s - first])) continue;
    ++totals[s].samples;
    moments[s * kMoments + kLow].add(lo[s - first]);
    moments[s * kMoments + kHigh].add(hi[s - first]);
  }
}

namespace {

// Least and greatest of each scale, as doubles.
struct Ranges {
  std::vector<double> lo, hi;
  int64_t nan;
  Ranges(const Granularity& layout, const void* x, Element in) : lo(layout.scales()), hi(layout.scales()) {
    nan = layout.elements() == 0 ? 0 : range(layout, x, in, lo.data(), hi.data());
    if (in == Element::f64) return;
    for (std::vector<double>* v : {&lo, &hi})  // floats, from the last on: each takes the place of two
      for (int64_t i = layout.scales(); i-- > 0;) {
        float f;
        std::memcpy(&f, reinterpret_cast<const char*>(v->data()) + 4 * i, 4);
        (*v)[i] = f;
      }
  }
  int64_t bad() const {
    int64_t found = nan;
    for (size_t i = 0; i < lo.size(); ++i) found += std::isinf(lo[i]) || std::isinf(hi[i]);
    return found;
  }
};

}  // namespace

// Ranges alone, at the speed of memory.
Sketches::Added Sketches::add_range(const Granularity& layout, const void* x, Element in) {
  const Ranges found(layout, x, in);
  if (layout.elements() == 0) return {};
  if (const int64_t bad = found.bad(); bad != 0) return {bad};
  for (int64_t s = 0; s < scales(); ++s) {
    const int64_t group = layout.kind == GranularityKind::group ? s / layout.inner % layout.groups() : 0;
    SketchTotals& t = totals[s];
    t.n += layout.kind == GranularityKind::group ? std::min(layout.block, layout.axis - group * layout.block)
                                                 : layout.elements() / layout.scales();
    t.lo = std::min(t.lo, found.lo[s]), t.hi = std::max(t.hi, found.hi[s]);
    ++t.samples;
    moments[s * kMoments + kLow].add(found.lo[s]);
    moments[s * kMoments + kHigh].add(found.hi[s]);
  }
  return {};
}

Sketches::Added Sketches::add(const Granularity& layout, const void* x, Element in, bool skip) {
  const std::lock_guard<std::mutex> lock(mutex);
  const int64_t n = layout.elements();
  const auto bad_of = [](const Sketches& s) {
    int64_t bad = 0;
    for (const SketchTotals& t : s.totals) bad += t.nan + t.above + t.below;
    return bad;
  };
  const int64_t had = bad_of(*this);
  if (bins_ == 0) return add_range(layout, x, in);
  if (!skip && (scales() > 1 || n <= kLookFirst)) {
    Granularity whole;
    whole.inner = n;
    const int64_t bad = Ranges(whole, x, in).bad();
    if (bad != 0) return {bad};
    skip = true;
  }
  if (scales() > 1) {
    const int64_t tasks = n < kParallel ? 1 : std::min<int64_t>(num_threads(), scales());
    parallel_for(tasks, [&](int64_t t) {
      const FpEnvironment environment;
      layout_run(layout, x, in, scales() * t / tasks, scales() * (t + 1) / tasks);
    });
    return {bad_of(*this) - had};
  }
  const int64_t blocks = (n + kBlock - 1) / kBlock;
  const int64_t tasks = n < kParallel ? 1 : std::min<int64_t>(num_threads(), blocks);
  const char* data = static_cast<const char*>(x);
  if (tasks == 1) {
    const FpEnvironment environment;
    static thread_local SketchState before(1, 0, 0);
    if (!skip) before = *this;
    double lo = __builtin_inf(), hi = -lo;
    run(0, data, in, n, lo, hi);
    const int64_t bad = bad_of(*this) - had;
    if (bad != 0 && !skip) {  // as if nothing had been
      static_cast<SketchState&>(*this) = before;
      return {bad};
    }
    if (lo <= hi) ++totals[0].samples, moments[kLow].add(lo), moments[kHigh].add(hi);
    return {bad};
  }
  // Each task fills a sketch of its own: nothing here changes until all is known to be well.
  std::vector<std::unique_ptr<Sketches>> part;
  std::vector<double> lo(tasks, __builtin_inf()), hi(tasks, -__builtin_inf());
  for (int64_t t = 0; t < tasks; ++t) {
    part.push_back(std::make_unique<Sketches>(1, bins_, reservoir_));
    // What could not stay here need not be kept there, and bins are those that will be needed.
    part[t]->floor_ = floor(0);
    part[t]->grow(0,
                  covering(part[t]->totals[0], totals[0].top, totals[0].least, totals[0].positive, totals[0].negative));
    if (totals[0].n >= kTail)
      part[t]->tail_floor_[0] = tails[kTail - 1], part[t]->tail_floor_[1] = tails[2 * kTail - 1];
  }
  parallel_for(tasks, [&](int64_t t) {
    const FpEnvironment environment;
    const int64_t first = blocks * t / tasks * kBlock, last = std::min(n, blocks * (t + 1) / tasks * kBlock);
    part[t]->run(0, data + first * element_bytes(in), in, last - first, lo[t], hi[t]);
  });
  int64_t bad = 0;
  for (const auto& p : part) bad += bad_of(*p);
  if (bad != 0 && !skip) return {bad};
  for (const auto& p : part) merge(0, *p);
  const double least = *std::min_element(lo.begin(), lo.end()), most = *std::max_element(hi.begin(), hi.end());
  if (least <= most) ++totals[0].samples, moments[kLow].add(least), moments[kHigh].add(most);
  return {bad};
}

void Sketches::merge(int64_t scale, const Sketches& other) {
  SketchTotals& t = totals[scale];
  const SketchTotals& o = other.totals[scale];
  grow(scale, covering(t, o.top, o.least, o.positive, o.negative));
  if (o.n != 0) fold(o, other.counts.data() + scale * bins_, t, counts.data() + scale * bins_, bins_);
  if (bins_ != 0) {
    const float* theirs = other.tails.data() + scale * 2 * kTail;
    const int32_t* count = other.tailed.data() + scale * 2;
    extend_tails(scale, theirs, count[0], theirs + kTail, count[1]);
  }
  t.n += o.n, t.zeros += o.zeros, t.samples += o.samples;
  t.nan += o.nan, t.above += o.above, t.below += o.below;
  t.hash[0] += o.hash[0], t.hash[1] += o.hash[1];
  t.lo = std::min(t.lo, o.lo), t.hi = std::max(t.hi, o.hi);
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
              [](const Kept& a, const Kept& b) { return before(b, a); });  // ascending: still a heap
    const BinLayout l = bin_layout(totals[s], bins_);
    if (l.negative == 0) continue;
    uint64_t* c = counts.data() + s * bins_;
    c[0] += c[l.negative];
    c[l.negative] = 0;
  }
}

}  // namespace lowbit
