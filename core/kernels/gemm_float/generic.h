// The micro-kernel: Rows of x by kFloatCols rows of w, with one register for each f32 chain.
#pragma once
#include <cstring>

#include "kernels/gemm_float/gemm_float.h"
#include "simd/vec.h"

namespace lowbit {

template <class V>
LOWBIT_INLINE double sum_of_lanes(typename V::F64 x) {
  double lane[V::width];
  V::store(lane, x);
  for (int half = V::width / 2; half > 0; half /= 2)
    for (int l = 0; l < half; ++l) lane[l] += lane[l + half];
  return lane[0];
}

// Adds one chain of `steps` vectors of x and w to the totals.
template <class V, int Rows>
LOWBIT_INLINE void add_chain(const GemmFloatArgs& a, const float* x, const float* w, int64_t steps,
                             typename V::F64 (&total)[Rows][kFloatCols]) {
  using F32 = typename V::F32;
  F32 sum[Rows][kFloatCols];
  const auto step = [&](int64_t at, auto&& join) __attribute__((always_inline)) {
    F32 v[Rows];
    for (int i = 0; i < Rows; ++i) v[i] = V::load(x + i * a.x_stride + at);
    for (int j = 0; j < kFloatCols; ++j) {
      const F32 u = V::load(w + j * a.w_stride + at);
      for (int i = 0; i < Rows; ++i) sum[i][j] = join(v[i], u, sum[i][j]);
    }
  };
  step(0, [](F32 v, F32 u, F32) __attribute__((always_inline)) { return V::mul(v, u); });
  for (int64_t s = 1; s < steps; ++s) {
    step(s * V::width, [](F32 v, F32 u, F32 t) __attribute__((always_inline)) { return multiply_add<V>(v, u, t); });
  }
  for (int i = 0; i < Rows; ++i)
    for (int j = 0; j < kFloatCols; ++j) total[i][j] = V::add(total[i][j], V::to_f64(sum[i][j]));
}

template <class V, int Rows>
__attribute__((noinline)) void float_tile(const GemmFloatArgs& a, int64_t row, int64_t column) {
  typename V::F64 total[Rows][kFloatCols];
  for (int i = 0; i < Rows; ++i)
    for (int j = 0; j < kFloatCols; ++j) total[i][j] = V::set(0.0);
  const float *x = a.x + row * a.x_stride, *w = a.w + column * a.w_stride;
  constexpr int64_t kLength = kFloatChain * V::width;
  int64_t k = 0;
  for (; k + kLength <= a.k; k += kLength) add_chain<V, Rows>(a, x + k, w + k, kFloatChain, total);
  if (k < a.k) add_chain<V, Rows>(a, x + k, w + k, (a.k - k) / V::width, total);
  for (int i = 0; i < Rows; ++i)
    for (int j = 0; j < kFloatCols; ++j)
      a.totals[(row + i) * a.total_stride + column + j] += sum_of_lanes<V>(total[i][j]);
}

template <class V, int MaxRows>
void float_dot(const GemmFloatArgs& a) {
  for (int64_t column = 0; column < a.columns; column += kFloatCols) {
    for (int64_t row = 0; row < a.rows;) {
      const int64_t left = a.rows - row;
      // The last two tiles share the remaining rows: a tile of one row is bound by its loads.
      const int64_t rows = left <= MaxRows ? left : (left < 2 * MaxRows ? (left + 1) / 2 : MaxRows);
      with_rows<MaxRows>(rows, [&]<int Rows>() { float_tile<V, Rows>(a, row, column); });
      row += rows;
    }
  }
}

template <class V, class In>
void widen_row(const void* from, int64_t n, float* to) {
  const In* x = static_cast<const In*>(from);
  int64_t i = 0;
  for (; i + V::width <= n; i += V::width) V::store(to + i, V::load(x + i));
  for (; i < n; ++i) to[i] = widen(x[i]);
  for (; i % kFloatPad != 0; ++i) to[i] = 0.0f;
}

template <class V>
struct GemmFloatRows {
  // Rows of a full tile, such that each row of x and one vector of w have a register, too.
  static constexpr int kRows = V::width == 4 ? 6 : 3;
  static constexpr GemmFloatRow rows[] = {
#define ROW(name, type) {Element::name, widen_row<V, type>, float_dot<V, kRows>},
#include "kernels/gemm_float/kernels.inc"
#undef ROW
  };
};

}  // namespace lowbit
