#include "drivers/reduce/bins.h"

namespace lowbit {

bool is_capped(const SketchTotals& t) {
  return static_cast<int32_t>(t.top >> 23) - static_cast<int32_t>(t.least >> 23) > kOctaves;
}

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

void add_counts(const SketchTotals& from, const uint64_t* counts, const SketchTotals& to, uint64_t* into,
                int64_t bins) {
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

}  // namespace lowbit
