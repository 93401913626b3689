// Sketches: what a stream of numbers looks like, in fixed memory. One for each scale of a Granularity.
//
// A sketch is a function of the multiset of blocks it was given, whatever their order, however they were spread over
// threads, shards and restarts:
//   counts, least, greatest      integers and comparisons
//   sums of x, x^2, |x|          each block's in f64, those of blocks added exactly (ExactSum)
//   a histogram                  by the bits of |x| as an f32, which are ordered like |x| and spaced like its
//   logarithm.
//                                Bins are 2^shift bit patterns wide. The shift follows from the greatest and least |x|
//                                and the signs seen, and grows as they do; then neighbours are added. Whatever lies
//                                more than kOctaves below the greatest |x| is counted as tiny, with the zeros.
//   tails                        the kTail greatest numbers and the kTail least, as they are
//   a reservoir                  the elements of highest priority, which a hash of their block and index gives them
//
// Blocks are runs of up to kSumBlock elements of one array under one scale, in order.
#pragma once
#include <cstdint>
#include <mutex>
#include <vector>

#include "base/granularity.h"
#include "base/types.h"
#include "kernels/sketch/sketch.h"

namespace lowbit {

// A sum of doubles without rounding: 2^-1074 times an integer.
class ExactSum {
 public:
  static constexpr int kLimbs = 68;
  void add(double x);
  void add(const ExactSum& other);
  void normalize();  // every limb but the last in [0, 2^32): equal sums have equal limbs
  int64_t limb[kLimbs] = {};
  bool finite = true;  // false once an Inf or NaN was added: then it is no number

 private:
  int64_t pending_ = 0;
};

struct SketchTotals {
  int64_t n = 0, zeros = 0, samples = 0;  // finite numbers; arrays with at least one
  int64_t nan = 0, above = 0, below = 0;  // numbers that are not: NaN, +Inf, -Inf
  uint64_t hash[2] = {0, 0};              // of all blocks
  uint32_t top = 0, least = 0;            // greatest and least nonzero |x|, as bits; 0: none
  bool positive = false, negative = false;
  double lo = __builtin_inf(), hi = -__builtin_inf();
};

struct BinLayout {
  int shift = 0;
  int32_t first = 0;     // |x| lies in bin (bits >> shift) - first; bin 0 and below: tiny
  int32_t negative = 0;  // where bins of negative numbers start; 0 unless both signs were seen
  bool operator==(const BinLayout&) const = default;
};

constexpr int32_t kOctaves = 30;
constexpr int64_t kTail = 64;
BinLayout bin_layout(const SketchTotals& t, int64_t bins);

struct Kept {
  uint32_t priority;
  float value;
};

// All that changes as numbers are added; a copy of it is all that undoing takes.
struct SketchState {
  enum Moment { kX, kX2, kAbs, kLow, kHigh, kMoments };  // the last two: of each array's least and greatest

  SketchState(int64_t scales, int64_t bins, int64_t reservoir);
  std::vector<SketchTotals> totals;
  std::vector<ExactSum> moments;   // [scales, kMoments]
  std::vector<uint64_t> counts;    // [scales, bins]
  std::vector<float> tails;        // [scales, 2, kTail]: the greatest, falling, and the least, rising
  std::vector<int32_t> tailed;     // [scales, 2], how many there are
  std::vector<Kept> kept;          // [scales, reservoir], a heap, the lowest priority first
  std::vector<int32_t> held;       // [scales], of the reservoir
  std::vector<BinLayout> layouts;  // of the totals
};

class Sketches : public SketchState {
 public:
  // Without bins: ranges and counts alone.
  Sketches(int64_t scales, int64_t bins, int64_t reservoir)
      : SketchState(scales, bins, reservoir), bins_(bins), reservoir_(reservoir) {}

  struct Added {
    int64_t bad = 0;  // NaN and Inf
  };
  // x: layout.scales() == scales(). With skip, what is not finite is counted and left out; else, if there is any, none
  // of x is added.
  Added add(const Granularity& layout, const void* x, Element in, bool skip);
  void add(const Sketches& other);  // sizes must be equal

  int64_t scales() const { return static_cast<int64_t>(totals.size()); }
  int64_t bins() const { return bins_; }
  int64_t reservoir() const { return reservoir_; }
  int64_t nbytes() const;
  void restored();  // after the public vectors were written
  void settle();    // canonical: equal streams have equal bytes

  std::mutex mutex;

 private:
  void run(int64_t scale, const void* x, Element in, int64_t n, double& lo, double& hi);
  void block(int64_t scale, const float* x, int64_t n, const double* wide, double& lo, double& hi);
  Added add_range(const Granularity& layout, const void* x, Element in);
  int64_t tiny(int64_t scale) const;
  CountArgs args(int64_t scale, const float* x, int64_t n);
  void grow(int64_t scale, const SketchTotals& to);
  void keep(int64_t scale, Kept k);
  void extend_tails(int64_t scale, const float* greatest, int64_t n, const float* least, int64_t m);
  void merge(int64_t scale, const Sketches& other);
  void layout_run(const Granularity& layout, const void* x, Element in, int64_t first, int64_t last);
  void sample(int64_t scale, const float* x, int64_t n, uint64_t hash);
  uint32_t floor(int64_t scale) const;  // no lower priority is kept
  int64_t bins_, reservoir_;
  uint32_t floor_ = 0;
  float tail_floor_[2] = {-__builtin_inff(), __builtin_inff()};  // tails need nothing below, above
};

}  // namespace lowbit
