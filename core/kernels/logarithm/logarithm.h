// Logarithmic codes: sign(x) * m, 0 <= m <= M.  |y| = s * 2^(-(M - m) / r) for m >= 1, code 0 is zero.
//
//   m = number of thresholds t <= |x| / s
//
// thresholds[m - 1] is the least compute-type number whose magnitude code is m or more: rounding in
// the log domain, ties to even, decided once when the table is made, so that encoding is comparison
// only and no log2() of some maths library can change a code. NaN gives -M.
//
// The tables are a look-up by exponent and leading mantissa bits that leaves at most a step or two to compare.
// One scalar kernel serves every ISA: the look-up, not the arithmetic, is the cost.
#pragma once
#include <vector>

#include "base/types.h"

namespace lowbit {

template <class T>
struct LogTable {
  std::vector<T> thresholds;  // M of them, ascending, in (0, 1), and an infinity to end on
  std::vector<T> values;      // 2M + 1: values[M + code], signed, values[M] = 0
  std::vector<uint16_t> bucket;
  int64_t first_bucket = 0;
  int shift = 0;
  int steps = 0;  // the most thresholds in one bucket

  LogTable(std::vector<T> thresholds_in, const std::vector<T>& magnitudes);
  int levels() const { return static_cast<int>(thresholds.size()) - 1; }
};

template <class In, class C>
void log_encode(const LogTable<compute_t<In>>& table, const In* x, C* q, int64_t n, compute_t<In> scale);

template <class C, class Out>
void log_decode(const LogTable<compute_t<Out>>& table, const C* q, Out* y, int64_t n, compute_t<Out> scale);

}  // namespace lowbit
