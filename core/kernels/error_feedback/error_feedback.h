// Rounding one input after the other, with the error of those before it fed back: GPTQ in Babai's form. With H = R R^T
// the second moments of the inputs, R upper triangular, and T_ij = R_ij / R_jj,
//   v_j = w_j + sum_{i<j} e_i T_ij,   p_j = clamp(rne(v_j / s_j), low_j, high_j),   e_j = w_j - s_j p_j.
// Without rounding, p_j = v_j and e_j = -v_j solve v R = (w_j R_jj)_j. A tile has rows of weights as lanes; sums run
// over i in order, in float32, so that every ISA gives the same bits.
#pragma once
#include "base/types.h"
#include "kernels/families.h"

namespace lowbit {

constexpr int64_t kFeedbackLanes = 32;  // rows of weights in a tile
constexpr int64_t kFeedbackBlock = 32;  // inputs whose sums are computed at once

struct FeedbackArgs {
  const float* w;  // [inputs, lanes]
  const float* t;  // [inputs, inputs]: read above the diagonal
  int64_t inputs;
  // Of the scales: [groups, lanes], and the group of each input.
  const float *scale, *low, *high;
  const int32_t* group;
  float* e;  // [inputs, lanes]
  float* v;  // [inputs, lanes]: steps p, or v where nothing is rounded
};

struct FeedbackProductArgs {
  const float *a, *b;  // [inputs, lanes], [inputs, columns]
  int64_t inputs, columns;
  float* out;  // [columns, lanes]: sum_i a_i b_ij
};

using FeedbackFn = void (*)(const FeedbackArgs&);
using FeedbackProductFn = void (*)(const FeedbackProductArgs&);

struct FeedbackRow {
  FeedbackFn round;
  FeedbackFn solve;
  FeedbackProductFn product;
};

const FeedbackRow& error_feedback_row(Isa isa);

}  // namespace lowbit
