// What one block of numbers adds to a sketch of a stream. Integers, and f64 sums in a fixed order, so that the bits are
// the same on every ISA.
//
// stats   minimum and maximum; largest and smallest nonzero |x|, as f32 bits, which are ordered like |x|;
//         sums of x, x^2, |x| in f64, element i in lane i mod 8; a hash of the bits.
// count   bins[clamp((|x| bits >> shift) - first, 0, last) + (x < 0 ? negative : 0)] += by for each x.
#pragma once
#include "base/types.h"
#include "kernels/families.h"

namespace lowbit {

constexpr int64_t kHashLanes = 32;
constexpr int kPowers = 3;
constexpr uint32_t kHashPrime = 0x01000193u;

struct BlockStats {
  float lo, hi;         // undefined, as top is, if sum[0] is not finite
  uint32_t top, least;  // largest and smallest nonzero |x|; least: 0 if all are zero
  double sum[kPowers];
  uint64_t hash;
};

struct CountArgs {
  const float* x;
  int64_t n;
  int shift;
  int32_t first, last;
  int32_t negative;
  uint64_t by;  // 1, or -1 to undo
  uint64_t* bins;
};

struct SketchRow {
  void (*stats_and_count)(const CountArgs&, BlockStats& out);
  void (*count)(const CountArgs&);
};

}  // namespace lowbit
