#include "kernels/error_feedback/error_feedback.h"

#include <algorithm>

#include "base/memory.h"
#include "base/threads.h"
#include "drivers/solve/solve.h"

namespace lowbit {
namespace {

constexpr int64_t kLanes = kFeedbackLanes;

// Rows [row, row + 32) of a [rows, columns] with the rows as lanes; missing ones are `missing`.
void to_lanes(const float* a, int64_t rows, int64_t columns, int64_t row, float missing, float* out) {
  for (int64_t lane = 0; lane < kLanes; ++lane)
    for (int64_t c = 0; c < columns; ++c)
      out[c * kLanes + lane] = row + lane < rows ? a[(row + lane) * columns + c] : missing;
}

void from_lanes(const float* in, int64_t rows, int64_t columns, int64_t row, float* a) {
  for (int64_t lane = 0; lane < std::min(kLanes, rows - row); ++lane)
    for (int64_t c = 0; c < columns; ++c) a[(row + lane) * columns + c] = in[c * kLanes + lane];
}

}  // namespace

void feed_back_errors(const FeedbackProblem& p, Isa isa) {
  const FeedbackRow& kernel = error_feedback_row(isa);
  parallel_for(ceil_div(p.rows, kLanes), [&](int64_t tile) {
    const int64_t row = tile * kLanes, inputs = p.inputs * kLanes, scales = p.groups * kLanes;
    Cutter cut(thread_block(3 * lines(inputs * 4) + 3 * lines(scales * 4)));
    float *w = cut.take<float>(inputs), *e = cut.take<float>(inputs), *v = cut.take<float>(inputs);
    to_lanes(p.w, p.rows, p.inputs, row, 0.0f, w);
    FeedbackArgs k{w, p.t, p.inputs, nullptr, nullptr, nullptr, p.group, e, v};
    if (p.scale != nullptr) {
      float *scale = cut.take<float>(scales), *low = cut.take<float>(scales), *high = cut.take<float>(scales);
      to_lanes(p.scale, p.rows, p.groups, row, 1.0f, scale);
      to_lanes(p.low, p.rows, p.groups, row, 0.0f, low);
      to_lanes(p.high, p.rows, p.groups, row, 0.0f, high);
      k.scale = scale, k.low = low, k.high = high;
      kernel.round(k);
    } else {
      kernel.solve(k);
    }
    from_lanes(v, p.rows, p.inputs, row, p.v);
  });
}

void product_in_order(const float* a, const float* b, int64_t rows, int64_t inputs, int64_t columns, float* out,
                      Isa isa) {
  const FeedbackRow& kernel = error_feedback_row(isa);
  parallel_for(ceil_div(rows, kLanes), [&](int64_t tile) {
    const int64_t row = tile * kLanes;
    Cutter cut(thread_block(lines(inputs * kLanes * 4) + lines(columns * kLanes * 4)));
    float *left = cut.take<float>(inputs * kLanes), *sums = cut.take<float>(columns * kLanes);
    to_lanes(a, rows, inputs, row, 0.0f, left);
    kernel.product({left, b, inputs, columns, sums});
    from_lanes(sums, rows, columns, row, out);
  });
}

}  // namespace lowbit
