#include "drivers/reduce/scores.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/threads.h"

namespace lowbit {
namespace {

// Mean of (u - n)^2 for u even over [a, b).
double from_point(double a, double b, double n) {
  const double middle = (a + b) / 2 - n, width = b - a;
  return middle * middle + width * width / 12;
}

// Integral of (u - rint(u))^2 from 0 to u.
double rounding_integral(double u) {
  const double n = std::rint(u), d = u - n;
  return n / 12 + d * d * d / 3;
}

// Mean of the squared distance, in steps, to the nearest code, for u even over [a, b).
double mean_error(double a, double b, double least, double most) {
  if (b <= least + 0.5) return from_point(a, b, least);
  if (a >= most - 0.5) return from_point(a, b, most);
  if (a < least - 0.5) {  // partly clipped: a weighted mean of both parts
    const double share = (least - 0.5 - a) / (b - a);
    return share * from_point(a, least - 0.5, least) + (1 - share) * mean_error(least - 0.5, b, least, most);
  }
  if (b > most + 0.5) {
    const double share = (b - most - 0.5) / (b - a);
    return share * from_point(most + 0.5, b, most) + (1 - share) * mean_error(a, most + 0.5, least, most);
  }
  const double first = std::rint(a);
  if (first == std::rint(b)) return from_point(a, b, first);
  // Relative to the first code, so that long ranges do not lose precision.
  return (rounding_integral(b - first) - rounding_integral(a - first)) / (b - a);
}

}  // namespace

void squared_error(const Histogram& h, const Mapping* mappings, int64_t count, double* out) {
  parallel_for(count, [&](int64_t c) {
    const Mapping& m = mappings[c];
    const double least = static_cast<double>(m.least), most = static_cast<double>(m.most), inverse = 1 / m.scale;
    double sum = 0;
    for (int64_t i = 0; i < h.bins; ++i)
      sum += h.count[i] * mean_error(h.lower[i] * inverse, h.upper[i] * inverse, least, most);
    out[c] = sum * m.scale * m.scale;
  });
}

void divergence(const Histogram& h, const Mapping* mappings, int64_t count, double floor, double* out) {
  double total = 0;
  for (int64_t i = 0; i < h.bins; ++i) total += h.count[i];
  struct Part {
    double number, width;
  };
  parallel_for(count, [&](int64_t c) {
    const Mapping& m = mappings[c];
    const double least = static_cast<double>(m.least), most = static_cast<double>(m.most);
    double below = 0, above = 0, inside = 0, sum = 0;
    for (int64_t i = 0; i < h.bins; ++i) {  // how many are clipped
      const double a = h.lower[i] / m.scale, b = h.upper[i] / m.scale, density = h.count[i] / (b - a);
      const double low = density * std::max(0.0, std::min(b, least - 0.5) - a);
      const double high = density * std::max(0.0, b - std::max(a, most + 0.5));
      below += low, above += high, inside += h.count[i] - low - high;
    }
    std::vector<Part> cell;
    double number = 0, width = 0, code = least;
    bool first = true;
    // Adds the divergence over the parts of a cell, the last one if `last`.
    const auto close = [&](bool last) {
      const double q = number > 0 && inside > 0 ? number / (width * inside) : 0;
      for (size_t i = 0; i < cell.size(); ++i) {
        double own = cell[i].number;
        if (first && i == 0) own += below;
        if (last && i + 1 == cell.size()) own += above;
        if (own > 0) sum += own / total * std::log(own / total / std::max(q * cell[i].width, floor));
      }
      first = first && cell.empty();
      cell.clear();
      number = width = 0;
    };
    for (int64_t i = 0; i < h.bins; ++i) {
      const double a = h.lower[i] / m.scale, b = h.upper[i] / m.scale, density = h.count[i] / (b - a);
      const double end = std::min(b, most + 0.5);
      for (double from = std::max(a, least - 0.5); from < end;) {
        const double now = std::clamp(std::floor(from + 0.5), least, most);
        if (now != code && !cell.empty()) close(false);
        code = now;
        const double to = std::min(end, now == most ? end : now + 0.5);
        if (!(to > from)) break;
        cell.push_back({density * (to - from), to - from});
        number += cell.back().number, width += cell.back().width;
        from = to;
      }
    }
    close(true);
    // No number lies inside: all are clipped, and Q is zero.
    if (first) {
      for (const double own : {below, above})
        if (own > 0) sum += own / total * std::log(own / total / floor);
    }
    out[c] = sum;
  });
}

}  // namespace lowbit
