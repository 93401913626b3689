// What quantizing a distribution would cost, from a histogram: numbers spread evenly over [lower, upper) of each bin,
// or all at one place where the two are equal.
#pragma once
#include <cstdint>

namespace lowbit {

struct Histogram {
  const double *lower, *upper, *count;  // ascending, bins do not overlap
  int64_t bins;
};

// One mapping: codes of `scale`, at whole multiples [least, most] of it.
struct Mapping {
  double scale;
  int64_t least, most;
};

// Sum over all numbers of (x - its code's value)^2.
void squared_error(const Histogram& h, const Mapping* mappings, int64_t count, double* out);

// Kullback-Leibler divergence in nats from what clipping leaves of the histogram to what the codes tell of it.
// Bins are cut where the cells of codes, one scale wide, meet. P: the share of numbers in each piece, those beyond the
// ends in the outermost pieces. Q: each cell's own numbers, without those from beyond, spread evenly over the pieces of
// it; shares again. Where Q has nothing it counts as `floor`. Every bin must have a width.
void divergence(const Histogram& h, const Mapping* mappings, int64_t count, double floor, double* out);

}  // namespace lowbit
