// What one block of numbers adds to a sketch (drivers/sketch.h). All integers and f64 sums in a fixed order, so the
// bits are the same on every ISA.
//
// stats   least and greatest; greatest and least nonzero |x|, as the bits of an f32, which are ordered like |x| is;
//         zeros; sums of x, x^2, x^3, x^4, |x| in f64, element i in lane i mod 8; a hash of the bits.
// count   bins[max((|x| bits >> shift) - first, 0) + (x < 0 ? negative : 0)] += 1 for each x.
// sample  element i has the priority mix(seed + i); those at or above a floor are returned.
#pragma once
#include "base/arch.h"
#include "base/types.h"

namespace lowbit {

constexpr int64_t kHashLanes = 32;
constexpr int kPowers = 5;
constexpr uint32_t kHashPrime = 0x01000193u;
constexpr uint32_t kMix[3] = {0x9e3779b1u, 0x85ebca77u, 0xc2b2ae3du};

struct BlockStats {
  float lo, hi;         // garbage if top is no number's
  uint32_t top, least;  // least: 0 if all are zero
  int64_t zeros;
  double sum[kPowers];
  uint64_t hash;
};

struct CountArgs {
  const float* x;
  int64_t n;
  int shift;
  int32_t first;
  int32_t negative;
  uint64_t* bins;
};

struct Candidate {
  int32_t priority, index;
};

// ((i + seed) times odd numbers, its upper half added to the lower in between): a bijection with well-mixed upper bits.
inline int32_t priority_of(uint32_t seed, uint32_t i) {
  uint32_t t = (i + seed) * kMix[0];
  t = (t + (t >> 15)) * kMix[1];
  t = (t + (t >> 13)) * kMix[2];
  return static_cast<int32_t>(t);
}

struct SketchRow {
  void (*stats)(const float* x, int64_t n, BlockStats& out);
  void (*count)(const CountArgs&);
  void (*widen_half)(const void* x, int64_t n, float* out);
  void (*widen_bfloat)(const void* x, int64_t n, float* out);
  int64_t (*sample)(int64_t n, uint32_t seed, int32_t floor, Candidate* out);  // how many; out has room for n
};

const SketchRow* sketch_rows(Isa isa);

}  // namespace lowbit
