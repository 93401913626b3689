// The error of quantizing a distribution that a histogram describes: numbers spread evenly over [lower, upper) of each
// bin, or all at one place where the two are equal.
#pragma once
#include <cstdint>

namespace lowbit {

struct Histogram {
  const double *lower, *upper, *count;  // ascending, bins do not overlap
  int64_t bins;
};

// Codes that represent the multiples least .. most of `scale`.
struct Mapping {
  double scale;
  int64_t least, most;
};

// Sum over all numbers of (x - its code's value)^2.
void squared_error(const Histogram& h, const Mapping* mappings, int64_t count, double* out);

// Kullback-Leibler divergence in nats of Q, the distribution after quantization, from P, the clipped histogram.
// Bins are cut at the borders of cells; a cell is the interval, one scale wide, that has one code. P is the share of
// numbers in each part; the outermost parts include the clipped numbers. Q spreads each cell's own numbers, without the
// clipped ones, evenly over its parts. Where Q is zero it counts as `floor`. Every bin must have a width.
void divergence(const Histogram& h, const Mapping* mappings, int64_t count, double floor, double* out);

}  // namespace lowbit
