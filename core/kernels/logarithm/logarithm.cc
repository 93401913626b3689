#include "kernels/logarithm/logarithm.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "simd/vec.h"

namespace lowbit {
namespace {

template <class T>
using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;

template <class T>
int64_t bucket_of(T u, int shift) {
  return static_cast<int64_t>(load_as<Bits<T>>(&u) >> shift);
}

}  // namespace

template <class T>
LogTable<T>::LogTable(std::vector<T> thresholds_in, const std::vector<T>& magnitudes)
    : thresholds(std::move(thresholds_in)) {
  thresholds.push_back(static_cast<T>(INFINITY));
  const int m = levels();
  values.assign(2 * m + 1, T{0});
  for (int k = 1; k <= m; ++k) {
    values[m + k] = magnitudes[k - 1];
    values[m - k] = -magnitudes[k - 1];
  }
  // Thresholds are about m / octaves an octave: twice as many buckets leave each with one, or two at an edge.
  const double octaves = std::max(1.0, -std::log2(static_cast<double>(thresholds.front())));
  int bits = 1;
  while ((1 << bits) < 2 * m / octaves && bits < 14) ++bits;
  shift = std::numeric_limits<T>::digits - 1 - bits;
  first_bucket = bucket_of(thresholds.front(), shift) - 1;  // everything below shares the first
  const int64_t last = bucket_of(T{1}, shift);
  bucket.resize(last - first_bucket + 1);
  for (int64_t b = first_bucket; b <= last; ++b) {
    const auto below = [&](int64_t at) {
      const Bits<T> start = static_cast<Bits<T>>(at) << shift;
      const T u = load_as<T>(&start);
      return static_cast<int>(std::upper_bound(thresholds.begin(), thresholds.end() - 1, u) - thresholds.begin());
    };
    bucket[b - first_bucket] = static_cast<uint16_t>(below(b));
    steps = std::max(steps, below(b + 1) - below(b));
  }
}

template <class In, class C>
void log_encode(const LogTable<compute_t<In>>& table, const In* x, C* q, int64_t n, compute_t<In> scale) {
  using T = compute_t<In>;
  const T* t = table.thresholds.data();
  const uint16_t* bucket = table.bucket.data();
  const int64_t first = table.first_bucket;
  for (int64_t i = 0; i < n; ++i) {
    const T v = widen(x[i]);
    T u = std::fabs(v) / scale;
    u = u < T{1} ? u : T{1};  // NaN and Inf too: the largest magnitude
    const int64_t b = bucket_of(u, table.shift) - first;
    int m = bucket[b > 0 ? b : 0];
    for (int k = 0; k < table.steps; ++k) m += u >= t[m];
    q[i] = static_cast<C>(v > 0 ? m : -m);
  }
}

template <class C, class Out>
void log_decode(const LogTable<compute_t<Out>>& table, const C* q, Out* y, int64_t n, compute_t<Out> scale) {
  const auto* value = table.values.data() + table.levels();
  const int levels = table.levels();
  for (int64_t i = 0; i < n; ++i) {
    const int m = q[i] < -levels ? -levels : q[i];  // the one code two's complement has to spare
    narrow(y + i, value[m] * scale);
  }
}

template struct LogTable<float>;
template struct LogTable<double>;

#define ENCODE(In)                                                                                       \
  template void log_encode(const LogTable<compute_t<In>>&, const In*, int8_t*, int64_t, compute_t<In>);  \
  template void log_encode(const LogTable<compute_t<In>>&, const In*, int16_t*, int64_t, compute_t<In>); \
  template void log_decode(const LogTable<compute_t<In>>&, const int8_t*, In*, int64_t, compute_t<In>);  \
  template void log_decode(const LogTable<compute_t<In>>&, const int16_t*, In*, int64_t, compute_t<In>);
ENCODE(float)
ENCODE(double)
ENCODE(half_t)
ENCODE(bfloat_t)
#undef ENCODE

}  // namespace lowbit
