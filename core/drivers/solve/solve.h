// What algorithms for weights compute: scales of least error, rounding with error feedback, and factors of matrices.
// The same bits for any number of threads and on every ISA.
#pragma once
#include "base/arch.h"
#include "base/types.h"

namespace lowbit {

// How much the error of a weight x counts beside the importance of its input: 1, sqrt(a + x^2) or a + x^2.
enum class Emphasis { none, root, square };

// As in kernels/scale_search/scale_search.h, for every group of a matrix; the last of a row may be shorter.
struct ScaleSearchProblem {
  const float* x;           // [rows, inputs]
  const float* importance;  // [inputs], or null: 1
  const float* floor;       // [rows]: a of the emphasis; null for none
  int64_t rows, inputs, group;
  Emphasis emphasis;
  const float* factors;
  int64_t factor_count;
  float qmin, qmax;
  bool symmetric;
  int32_t offsets;
  Element rounding;
  float *scale, *error;  // [rows, groups]
  int32_t* zero_point;
};
void search_scales(const ScaleSearchProblem& p, Isa isa);

struct FeedbackProblem {
  const float* w;  // [rows, inputs]
  const float* t;  // [inputs, inputs], unit upper triangular
  int64_t rows, inputs;
  // Null where nothing is rounded: [rows, groups] scales, least and greatest steps, and the group of each input.
  const float *scale, *low, *high;
  const int32_t* group;
  int64_t groups;
  float* v;  // [rows, inputs]: steps, or the solution
};
void feed_back_errors(const FeedbackProblem& p, Isa isa);

// out [rows, columns] = a [rows, inputs] b [inputs, columns], summed over the inputs in order.
void product_in_order(const float* a, const float* b, int64_t rows, int64_t inputs, int64_t columns, float* out,
                      Isa isa);

// Replaces the lower triangle of a [n, n] by its Cholesky factor; what is above the diagonal is overwritten. Returns
// the first row whose pivot is not positive, or -1.
int64_t factor_cholesky(double* a, int64_t n, Isa isa);

}  // namespace lowbit
