#include "kernels/cholesky/cholesky.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/fp_environment.h"
#include "base/memory.h"
#include "base/threads.h"
#include "drivers/solve/solve.h"

namespace lowbit {
namespace {

constexpr int64_t kBlock = kCholeskyBlock, kLanes = kCholeskyLanes;

// Factors a block [count, count] in place, one column after the other. Returns the first bad pivot, or -1.
int64_t factor_block(double* a, int64_t stride, int64_t count) {
  for (int64_t c = 0; c < count; ++c) {
    for (int64_t r = c; r < count; ++r) {
      double v = a[r * stride + c];
      for (int64_t i = 0; i < c; ++i) v -= a[r * stride + i] * a[c * stride + i];
      if (r == c) {
        if (!(v > 0)) return c;
        v = std::sqrt(v);
      } else {
        v /= a[c * stride + c];
      }
      a[r * stride + c] = v;
    }
  }
  return -1;
}

}  // namespace

int64_t factor_cholesky(double* a, int64_t n, Isa isa) {
  const FpEnvironment environment;
  const CholeskyRow& kernel = cholesky_row(isa);
  // Updates write whole vectors: rows of a copy are as long as that needs.
  const int64_t stride = round_up(n, kLanes) + kLanes;
  const Aligned<double> wide = aligned<double>(n * stride), turned = aligned<double>(kBlock * stride);
  double *l = wide.get(), *panel = turned.get();
  parallel_for(ceil_div(n, kBlock), [&](int64_t task) {
    for (int64_t r = task * kBlock; r < std::min(n, (task + 1) * kBlock); ++r) {
      std::memcpy(l + r * stride, a + r * n, static_cast<size_t>(n) * sizeof(double));
      std::fill(l + r * stride + n, l + (r + 1) * stride, 0.0);
    }
  });
  std::fill(panel, panel + kBlock * stride, 0.0);
  for (int64_t from = 0; from < n; from += kBlock) {
    const int64_t columns = std::min(kBlock, n - from), below = from + columns, rest = n - below;
    double diagonal[kBlock * kBlock];
    const int64_t bad = factor_block(l + from * stride + from, stride, columns);
    if (bad >= 0) return from + bad;
    for (int64_t r = 0; r < columns; ++r)
      std::memcpy(diagonal + r * kBlock, l + (from + r) * stride + from, static_cast<size_t>(columns) * sizeof(double));
    parallel_for(ceil_div(rest, kLanes), [&](int64_t task) {
      const int64_t row = task * kLanes;
      kernel.panel({diagonal, l + (below + row) * stride + from, stride, std::min(kLanes, rest - row), columns,
                    panel + row, stride});
    });
    parallel_for(ceil_div(rest, kLanes), [&](int64_t task) {
      for (int64_t row = task * kLanes; row < std::min(rest, (task + 1) * kLanes); ++row) {
        double* at = l + (below + row) * stride;
        kernel.update({at + below, at + from, panel, stride, columns, row + 1});
      }
    });
  }
  parallel_for(ceil_div(n, kBlock), [&](int64_t task) {
    for (int64_t r = task * kBlock; r < std::min(n, (task + 1) * kBlock); ++r) {
      std::memcpy(a + r * n, l + r * stride, static_cast<size_t>(r + 1) * sizeof(double));
      std::fill(a + r * n + r + 1, a + (r + 1) * n, 0.0);
    }
  });
  return -1;
}

}  // namespace lowbit
