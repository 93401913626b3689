// Sketches: statistics of a stream of numbers in fixed memory, one sketch for each scale of a Granularity.
//
// A sketch is a function of the multiset of blocks added to it: their order, and how they were spread over threads,
// shards and restarts, does not matter.
//   counts, least, greatest      integers and comparisons
//   sums of x, x^2, |x|          each block's in f64, those of blocks added exactly (ExactSum)
//   a histogram                  by the bits of |x| as an f32, which are ordered like |x| and spaced like its
//                                logarithm. Bins are 2^shift bit patterns wide. The shift follows from the greatest
//                                and least |x| and the signs seen. When it grows, neighbouring bins are added. Numbers
//                                more than kOctaves below the greatest |x| are counted as tiny, with the zeros.
//   tails                        the kTail greatest numbers and the kTail least
//   a reservoir                  the elements of highest priority, a hash of their block and index
//
// Blocks are runs of up to kSumBlock elements of one array under one scale, in order.
#pragma once
#include <cstdint>
#include <mutex>
#include <vector>

#include "base/granularity.h"
#include "base/types.h"
#include "drivers/reduce/bins.h"
#include "drivers/reduce/exact_sum.h"
#include "kernels/sketch/sketch.h"

namespace lowbit {

constexpr int64_t kTail = 64;

struct Kept {
  uint32_t priority;
  float value;
};
// A total order of unequal samples, the highest priority first. A heap in this order has its lowest priority in front.
bool is_before(const Kept& a, const Kept& b);

// Everything that additions change: restoring a copy undoes them.
struct SketchState {
  enum Moment { kX, kX2, kAbs, kLow, kHigh, kMoments };  // the last two: sums of each array's least and greatest

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
  // bins = 0: ranges and counts alone.
  Sketches(int64_t scales, int64_t bins, int64_t reservoir)
      : SketchState(scales, bins, reservoir), bins_(bins), reservoir_(reservoir) {}

  // Returns the number of NaN and Inf in x; layout.scales() == scales(). With skip, they are counted and left out;
  // without, x is added only if there are none.
  int64_t add(const Granularity& layout, const void* x, Element in, bool skip);
  void add(const Sketches& other);  // sizes must be equal

  int64_t scales() const { return static_cast<int64_t>(totals.size()); }
  int64_t bins() const { return bins_; }
  int64_t reservoir() const { return reservoir_; }
  int64_t nbytes() const;
  void restored();  // after the public vectors were written
  void settle();    // canonical: equal streams have equal bytes

  std::mutex mutex;

 private:
  // sketch.cc
  int64_t bad() const;
  int64_t add_range(const Granularity& layout, const void* x, Element in);
  int64_t add_parallel(const void* x, Element in, int64_t n, int64_t tasks, bool skip);
  void add_sample(int64_t scale, const Extremes& seen);
  void grow(int64_t scale, const SketchTotals& to);
  void merge(int64_t scale, const Sketches& other);
  // blocks.cc: n elements of one scale, and the scales [first, last) of an array
  Extremes run(int64_t scale, const void* x, Element in, int64_t n);
  Extremes block(int64_t scale, const float* x, int64_t n, const double* wide);
  void run_scales(const Granularity& layout, const void* x, Element in, int64_t first, int64_t last);
  int64_t tiny(int64_t scale) const;
  CountArgs args(int64_t scale, const float* x, int64_t n);
  // samples.cc: the reservoir and the tails
  uint32_t floor(int64_t scale) const;  // no lower priority is kept
  void sample(int64_t scale, const float* x, int64_t n, uint64_t hash);
  void keep(int64_t scale, Kept k);
  void extend_tails(int64_t scale, const float* greatest, int64_t n, const float* least, int64_t m);

  int64_t bins_, reservoir_;
  uint32_t floor_ = 0;
  float tail_floor_[2] = {-__builtin_inff(), __builtin_inff()};  // tails need nothing below, above
};

}  // namespace lowbit
