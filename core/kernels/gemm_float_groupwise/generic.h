// The micro-kernel: Rows of x by Wide vectors of columns.
#pragma once
#include <algorithm>

#include "kernels/gemm_float_groupwise/gemm_float_groupwise.h"
#include "kernels/gemm_groupwise/gemm_groupwise.h"
#include "simd/vec.h"

namespace lowbit {

// Unpacks the weights of a group. With look_up16 the codes index a table of floats, from which a zero point that all
// columns share is subtracted already.
template <class V, int Bits, int Wide, bool Zeros>
struct FloatUnpacker {
  static constexpr bool kLooksUp = requires { &V::look_up16; };
  typename V::F32 table, zero[Wide], scale[Wide];

  explicit FloatUnpacker(float zero_all) {
    float value[16];
    for (int i = 0; i < 16; ++i) value[i] = static_cast<float>(i % (1 << Bits)) - (Zeros ? 0.0f : zero_all);
    table = V::load(value);
    for (int j = 0; j < Wide; ++j) zero[j] = V::set(zero_all);
  }

  // The weights whose codes are at bit `shift` of the lanes of vector j.
  typename V::F32 weights(int j, typename V::I32 v, int shift) const __attribute__((always_inline)) {
    const typename V::I32 low = shift == 0 ? v : V::shift_right(v, shift);
    typename V::F32 code;
    if constexpr (kLooksUp) {
      code = V::look_up16(table, low);
    } else {
      code = V::to_f32(V::bit_and(low, V::set_i32((1 << Bits) - 1)));
    }
    return V::mul(Zeros || !kLooksUp ? V::sub(code, zero[j]) : code, scale[j]);
  }
};

// Accumulates elements 4 * Quad to 4 * Quad + 3 of a step, in order.
template <class V, int Bits, int Rows, int Wide, bool Zeros>
LOWBIT_INLINE void add_quad(int quad, const FloatUnpacker<V, Bits, Wide, Zeros>& u,
                            const typename V::I32 (&codes)[Wide], const float* x, int64_t stride,
                            typename V::F32 (&sum)[Rows][Wide]) {
#pragma GCC unroll 8
  for (int place = 0; place < 4; ++place) {
    typename V::F32 w[Wide];
#pragma GCC unroll 8
    for (int j = 0; j < Wide; ++j) w[j] = u.weights(j, codes[j], place * 8 + quad * Bits);
#pragma GCC unroll 8
    for (int i = 0; i < Rows; ++i) {
      const typename V::F32 v = V::set(x[i * stride + quad * 4 + place]);
#pragma GCC unroll 8
      for (int j = 0; j < Wide; ++j) sum[i][j] = place == 0 ? V::mul(v, w[j]) : multiply_add<V>(v, w[j], sum[i][j]);
    }
  }
}

// Accumulates quads [Quad, Quad + Count) of a step, added pairwise.
template <class V, int Bits, int Rows, int Wide, bool Zeros, int Count, int Quad = 0>
LOWBIT_INLINE void add_quads(const FloatUnpacker<V, Bits, Wide, Zeros>& u, const typename V::I32 (&codes)[Wide],
                             const float* x, int64_t stride, typename V::F32 (&sum)[Rows][Wide]) {
  if constexpr (Count == 1) {
    add_quad<V, Bits, Rows, Wide, Zeros>(Quad, u, codes, x, stride, sum);
  } else {
    typename V::F32 other[Rows][Wide];
    add_quads<V, Bits, Rows, Wide, Zeros, Count / 2, Quad>(u, codes, x, stride, sum);
    add_quads<V, Bits, Rows, Wide, Zeros, Count / 2, Quad + Count / 2>(u, codes, x, stride, other);
#pragma GCC unroll 8
    for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 8
      for (int j = 0; j < Wide; ++j) sum[i][j] = V::add(sum[i][j], other[i][j]);
  }
}

template <class V, int Bits, int Rows, int Wide, bool Zeros>
__attribute__((noinline)) void float_group_tile(const FloatGroupwiseArgs& a, int64_t row, int64_t column) {
  constexpr int kQuads = 8 / Bits, kPlaces = 4 * kQuads, kTogether = 16 / kPlaces;  // steps added in f32
  typename V::F64 total[Rows][Wide];
  for (int i = 0; i < Rows; ++i)
    for (int j = 0; j < Wide; ++j) total[i][j] = V::set(0.0);
  FloatUnpacker<V, Bits, Wide, Zeros> u(static_cast<float>(a.zero_all));
  const uint8_t* b = a.b + column * 4;
  const float* x = a.x + row * a.x_stride;
  const int64_t step_bytes = a.columns * 4, stride = a.x_stride;
  const auto add_step = [&](typename V::F32(&sum)[Rows][Wide]) __attribute__((always_inline)) {
    typename V::I32 codes[Wide];
#pragma GCC unroll 8
    for (int j = 0; j < Wide; ++j) {
      const uint8_t* at = b + j * V::width * 4;
      prefetch_weights(at);
      codes[j] = V::load_i32(reinterpret_cast<const int32_t*>(at));
    }
    add_quads<V, Bits, Rows, Wide, Zeros, kQuads>(u, codes, x, stride, sum);
    b += step_bytes, x += kPlaces;
  };
  for (int64_t g = 0; g < a.groups; ++g) {
    const int64_t steps = g + 1 < a.groups ? a.steps : a.last_steps;
    const uint8_t *const scales = b + steps * step_bytes, *const zeros = scales + step_bytes - column * 3;
    for (int j = 0; j < Wide; ++j) {
      u.scale[j] = V::load(reinterpret_cast<const float*>(scales + j * V::width * 4));
      if constexpr (Zeros) u.zero[j] = V::to_f32(V::load_codes(zeros + j * V::width));
    }
    for (int64_t s = 0; s < steps; s += kTogether) {
      typename V::F32 sum[Rows][Wide];
      add_step(sum);
      if (kTogether == 2 && s + 1 < steps) {
        typename V::F32 next[Rows][Wide];
        add_step(next);
#pragma GCC unroll 8
        for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 8
          for (int j = 0; j < Wide; ++j) sum[i][j] = V::add(sum[i][j], next[i][j]);
      }
#pragma GCC unroll 8
      for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 8
        for (int j = 0; j < Wide; ++j) total[i][j] = V::add(total[i][j], V::to_f64(sum[i][j]));
    }
    b += step_bytes + (Zeros ? a.columns : 0);
  }
  for (int i = 0; i < Rows; ++i)
    for (int j = 0; j < Wide; ++j) V::store(a.totals + (row + i) * a.total_stride + column + j * V::width, total[i][j]);
}

template <class V, int Bits, int Rows, int Wide>
void float_group_strip(const FloatGroupwiseArgs& a, int64_t row, int64_t column, int64_t end) {
  constexpr int64_t kWidth = Wide * V::width;
  for (; column + kWidth <= end; column += kWidth)
    a.has_zeros ? float_group_tile<V, Bits, Rows, Wide, true>(a, row, column)
                : float_group_tile<V, Bits, Rows, Wide, false>(a, row, column);
  if constexpr (Wide > 1)
    if (column < end) float_group_strip<V, Bits, Rows, Wide / 2>(a, row, column, end);
}

// One row takes four vectors of columns at a time, several rows take one.
template <class V, int Bits, int MaxRows>
void float_groups(const FloatGroupwiseArgs& a) {
  if (a.rows == 1) return float_group_strip<V, Bits, 1, 4>(a, 0, 0, a.columns);
  for (int64_t column = 0; column < a.columns; column += kGroupVector)  // these columns stay in L2 for all rows
    for (int64_t row = 0; row < a.rows; row += MaxRows)
      with_rows<MaxRows>(std::min<int64_t>(MaxRows, a.rows - row), [&]<int Rows>() {
        float_group_strip<V, Bits, Rows, 1>(a, row, column, column + kGroupVector);
      });
}

template <class V>
struct FloatGroupwiseRows {
  static constexpr int kRows = V::width == 1 ? 2 : V::width == 8 ? 4 : 8;  // of a full tile: a quarter of the registers
  static constexpr FloatGroupwiseRow rows[] = {
#define ROW(bits) {bits, float_groups<V, bits, kRows>},
#include "kernels/gemm_float_groupwise/kernels.inc"
#undef ROW
  };
};

}  // namespace lowbit
