// The histogram of a sketch: where a number is counted, and how counts move when the range of numbers grows.
#pragma once
#include <algorithm>
#include <cstdint>

namespace lowbit {

struct Extremes {
  double lo = __builtin_inf(), hi = -__builtin_inf();
  void include(double low, double high) { lo = std::min(lo, low), hi = std::max(hi, high); }
};

struct SketchTotals : Extremes {
  int64_t n = 0, zeros = 0, samples = 0;  // finite numbers; arrays with at least one
  int64_t nan = 0, above = 0, below = 0;  // NaN, +Inf, -Inf
  uint64_t hash[2] = {0, 0};              // of all blocks
  uint32_t top = 0, least = 0;            // greatest and least nonzero |x|, as bits; 0: none
  bool positive = false, negative = false;
};

struct BinLayout {
  int shift = 0;
  int32_t first = 0;     // |x| lies in bin (bits >> shift) - first; bin 0 and below: tiny
  int32_t negative = 0;  // where bins of negative numbers start; 0 unless both signs were seen
  bool operator==(const BinLayout&) const = default;
};

constexpr int32_t kOctaves = 30;  // between the greatest |x| and the first bin, at most

BinLayout bin_layout(const SketchTotals& t, int64_t bins);

// Whether bins begin above the least |x|.
bool is_capped(const SketchTotals& t);

// t, extended to these magnitudes and signs.
SketchTotals covering(SketchTotals t, uint32_t top, uint32_t least, bool positive, bool negative);

// Adds counts laid out for `from` to counts laid out for `to`, which covers more.
void add_counts(const SketchTotals& from, const uint64_t* counts, const SketchTotals& to, uint64_t* into, int64_t bins);

}  // namespace lowbit
