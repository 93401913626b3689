// The micro-kernel, over the vector vocabulary V and an engine E:
//
//   V                      E's columns are V::width, the lanes of V::I32
//   Cols, load(p)          a step of b; part<Shift, Mask>(cols)  one quad of it, one code a byte
//   Quad, load_a(p)        four codes of a for every column
//   Sum, add(sum, part, a)     sums of products in what is fast
//   spill(bits)            steps after which a Sum must go to 32 bits; 0: it is 32 bits
//   to_i32(sum)
//   max_rows, wide(rows)   rows of a full tile; vectors of columns side by side
#pragma once
#include <algorithm>

#include "kernels/gemm_groupwise/gemm_groupwise.h"
#include "simd/vec.h"

namespace lowbit {

template <class E, int Bits, int Part, class Cols>
LOWBIT_INLINE auto part_of(const Cols& cols) {
  return E::template part<Part * Bits, (1 << Bits) - 1>(cols);
}

// Accumulates one step, part by part, alternating between the Chains of a sum.
template <class E, int Bits, int Rows, int Wide, int Chains, int Part = 0>
LOWBIT_INLINE void add_step(typename E::Sum (&sum)[Rows][Wide][Chains], const typename E::Cols (&cols)[Wide],
                            const int8_t* a, int64_t stride) {
  decltype(part_of<E, Bits, Part>(cols[0])) part[Wide];
  for (int j = 0; j < Wide; ++j) part[j] = part_of<E, Bits, Part>(cols[j]);
  for (int i = 0; i < Rows; ++i) {
    const typename E::Quad v = E::load_a(a + i * stride + Part * 4);
    for (int j = 0; j < Wide; ++j) E::add(sum[i][j][Part % Chains], part[j], v);
  }
  if constexpr (Part + 1 < 8 / Bits) add_step<E, Bits, Rows, Wide, Chains, Part + 1>(sum, cols, a, stride);
}

// Zeros: every column has a zero point.
template <class E, int Bits, int Rows, int Wide, bool Zeros>
__attribute__((noinline)) void group_tile(const GroupwiseArgs& x, int64_t row, int64_t column) {
  using V = typename E::V;
  constexpr int64_t kStep = 32 / Bits;  // elements of k
  constexpr int kChains =
      Rows * Wide <= 8 && E::spill(Bits) == 0 ? 2 : 1;  // a single chain of few sums is bound by latency
  typename V::F32 y[Rows][Wide];
  for (int i = 0; i < Rows; ++i)
    for (int j = 0; j < Wide; ++j) y[i][j] = V::set(0.0f);
  const uint8_t* b = x.b + column * 4;
  const int8_t* a = x.a + row * x.a_stride;
  const int64_t step_bytes = x.columns * 4;
  for (int64_t g = 0; g < x.groups; ++g) {
    const int64_t steps = g + 1 < x.groups ? x.steps : x.last_steps;
    typename E::Sum sum[Rows][Wide][kChains];
    const auto add_steps = [&](int64_t count) __attribute__((always_inline)) {
      for (int i = 0; i < Rows; ++i)
        for (int j = 0; j < Wide; ++j)
          for (int c = 0; c < kChains; ++c) sum[i][j][c] = typename E::Sum{};
      for (int64_t s = 0; s < count; ++s, b += step_bytes, a += kStep) {
        typename E::Cols cols[Wide];
        for (int j = 0; j < Wide; ++j) {
          const uint8_t* at = b + j * V::width * 4;
          prefetch_weights(at);
          cols[j] = E::load(at);
        }
        add_step<E, Bits, Rows, Wide, kChains>(sum, cols, a, x.a_stride);
      }
    };
    typename V::I32 dot[Rows][Wide];
    if constexpr (E::spill(Bits) == 0) {
      add_steps(steps);
      for (int i = 0; i < Rows; ++i)
        for (int j = 0; j < Wide; ++j) {
          dot[i][j] = E::to_i32(sum[i][j][0]);
          for (int c = 1; c < kChains; ++c) dot[i][j] = V::add(dot[i][j], E::to_i32(sum[i][j][c]));
        }
    } else {
      for (int i = 0; i < Rows; ++i)
        for (int j = 0; j < Wide; ++j) dot[i][j] = V::set_i32(0);
      for (int64_t first = 0; first < steps; first += E::spill(Bits)) {
        add_steps(std::min(steps - first, E::spill(Bits)));
        for (int i = 0; i < Rows; ++i)
          for (int j = 0; j < Wide; ++j) dot[i][j] = V::add(dot[i][j], E::to_i32(sum[i][j][0]));
      }
    }
    const uint8_t* const zeros = b + step_bytes - column * 3;  // a byte per column, where scales have four
    for (int j = 0; j < Wide; ++j) {
      const uint8_t* at = b + j * V::width * 4;
      prefetch_weights(at);
      const typename V::F32 scale = V::load(reinterpret_cast<const float*>(at));
      typename V::I32 zero;
      if constexpr (Zeros) zero = V::load_codes(zeros + j * V::width);
      for (int i = 0; i < Rows; ++i) {
        const int64_t of_a = (row + i) * x.groups + g;
        typename V::I32 of_zero;
        if constexpr (Zeros) {
          of_zero = V::mul_i32(zero, V::set_i32(x.a_sum[of_a]));
        } else {
          of_zero = V::set_i32(x.zero_all * x.a_sum[of_a]);
        }
        const typename V::I32 exact = V::sub(dot[i][j], of_zero);
        const typename V::F32 s = x.a_scale == nullptr ? scale : V::mul(V::set(x.a_scale[of_a]), scale);
        y[i][j] = V::add(y[i][j], V::mul(V::to_f32(exact), s));
      }
    }
    b += step_bytes + (Zeros ? x.columns : 0);
  }
  for (int i = 0; i < Rows; ++i)
    for (int j = 0; j < Wide; ++j) V::store(x.c + (row + i) * x.c_stride + column + j * V::width, y[i][j]);
}

// The columns from `column` on for Rows rows, in the widest tiles that registers allow.
template <class E, int Bits, int Rows, int Wide = E::wide(Rows)>
void group_strip(const GroupwiseArgs& x, int64_t row, int64_t column, int64_t end) {
  constexpr int64_t kWidth = Wide * E::V::width;
  static_assert(kWidth <= kGroupCols);
  for (; column + kWidth <= end; column += kWidth)
    x.has_zeros ? group_tile<E, Bits, Rows, Wide, true>(x, row, column)
                : group_tile<E, Bits, Rows, Wide, false>(x, row, column);
  if constexpr (Wide > 1)
    if (column < end) group_strip<E, Bits, Rows, Wide / 2>(x, row, column, end);
}

template <class E, int Bits>
void groups(const GroupwiseArgs& x) {
  constexpr int64_t kStrip = 2 * kGroupVector;  // columns that stay in L2 for all rows
  const int64_t strip = x.rows == 1 ? kGroupCols : kStrip;
  for (int64_t column = 0; column < x.columns; column += strip) {
    const int64_t end = std::min(column + strip, x.columns);
    for (int64_t row = 0; row < x.rows; row += E::max_rows)
      with_rows<E::max_rows>(std::min<int64_t>(E::max_rows, x.rows - row),
                             [&]<int Rows>() { group_strip<E, Bits, Rows>(x, row, column, end); });
  }
}

template <class E>
struct GroupwiseRows {
  static constexpr GroupwiseRow rows[] = {
#define ROW(bits) {bits, E::name, groups<E, bits>},
#include "kernels/gemm_groupwise/kernels.inc"
#undef ROW
  };
};

}  // namespace lowbit
