// The steps once, for every vector width.
#pragma once
#include "kernels/cholesky/cholesky.h"
#include "simd/vec.h"

namespace lowbit {

// Solves X L^T = A for 16 rows of X at once, a lane each.
template <class V>
void cholesky_panel(const CholeskyPanelArgs& k) {
  using F64 = typename V::F64;
  alignas(64) double x[kCholeskyBlock * kCholeskyLanes] = {};
  for (int64_t r = 0; r < k.count; ++r)
    for (int64_t c = 0; c < k.columns; ++c) x[c * kCholeskyLanes + r] = k.rows[r * k.stride + c];
  for (int64_t lane = 0; lane < kCholeskyLanes; lane += V::width) {
    for (int64_t c = 0; c < k.columns; ++c) {
      F64 v = V::load(x + c * kCholeskyLanes + lane);
      for (int64_t i = 0; i < c; ++i) {
        const F64 factor = V::set(k.diagonal[c * kCholeskyBlock + i]);
        v = V::sub(v, V::mul(V::load(x + i * kCholeskyLanes + lane), factor));
      }
      V::store(x + c * kCholeskyLanes + lane, V::divide(v, V::set(k.diagonal[c * kCholeskyBlock + c])));
    }
  }
  for (int64_t c = 0; c < k.columns; ++c) {
    for (int64_t r = 0; r < k.count; ++r) {
      const double v = x[c * kCholeskyLanes + r];
      k.rows[r * k.stride + c] = v;
      k.turned[c * k.turned_stride + r] = v;
    }
  }
}

template <class V>
void cholesky_update(const CholeskyUpdateArgs& k) {
  using F64 = typename V::F64;
  constexpr int kVectors = kCholeskyLanes / V::width;
  for (int64_t at = 0; at < k.count; at += kCholeskyLanes) {
    F64 sum[kVectors];
    for (int v = 0; v < kVectors; ++v) sum[v] = V::load(k.a + at + v * V::width);
    for (int64_t c = 0; c < k.columns; ++c) {
      const F64 factor = V::set(k.row[c]);
      const double* turned = k.turned + c * k.turned_stride + at;
      for (int v = 0; v < kVectors; ++v) sum[v] = V::sub(sum[v], V::mul(factor, V::load(turned + v * V::width)));
    }
    for (int v = 0; v < kVectors; ++v) V::store(k.a + at + v * V::width, sum[v]);
  }
}

template <class V>
struct CholeskyRows {
  static constexpr CholeskyRow rows[] = {{cholesky_panel<V>, cholesky_update<V>}};
};

}  // namespace lowbit
