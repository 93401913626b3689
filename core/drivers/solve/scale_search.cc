#include "kernels/scale_search/scale_search.h"

#include <algorithm>
#include <cmath>

#include "base/memory.h"
#include "base/threads.h"
#include "drivers/solve/solve.h"

namespace lowbit {
namespace {

float emphasized(const ScaleSearchProblem& p, float x, float floor) {
  if (p.emphasis == Emphasis::none) return 1.0f;
  const float square = floor + x * x;
  return p.emphasis == Emphasis::root ? std::sqrt(square) : square;
}

// Searches one group of up to 16 rows, from `row` on.
void search_tile(const ScaleSearchProblem& p, const ScaleSearchRow& kernel, int64_t row, int64_t g) {
  const int64_t from = g * p.group, count = std::min(p.group, p.inputs - from);
  const int64_t rows = std::min(kSearchLanes, p.rows - row), groups = ceil_div(p.inputs, p.group);
  Cutter cut(thread_block(2 * lines(count * kSearchLanes * 4)));
  float* x = cut.take<float>(count * kSearchLanes);
  float* w = cut.take<float>(count * kSearchLanes);
  for (int64_t lane = 0; lane < kSearchLanes; ++lane) {
    const float floor = lane < rows && p.floor != nullptr ? p.floor[row + lane] : 0.0f;
    for (int64_t i = 0; i < count; ++i) {
      const float value = lane < rows ? p.x[(row + lane) * p.inputs + from + i] : 0.0f;
      const float importance = p.importance != nullptr ? p.importance[from + i] : 1.0f;
      x[i * kSearchLanes + lane] = value;
      w[i * kSearchLanes + lane] = importance * emphasized(p, value, floor);
    }
  }
  float scale[kSearchLanes], zero[kSearchLanes], error[kSearchLanes];
  kernel.search(
      {x, w, count, p.factors, p.factor_count, p.qmin, p.qmax, p.symmetric, p.offsets, p.rounding, scale, zero, error});
  for (int64_t lane = 0; lane < rows; ++lane) {
    const int64_t at = (row + lane) * groups + g;
    p.scale[at] = scale[lane], p.error[at] = error[lane];
    p.zero_point[at] = static_cast<int32_t>(zero[lane]);
  }
}

}  // namespace

void search_scales(const ScaleSearchProblem& p, Isa isa) {
  if (p.rows == 0 || p.inputs == 0) return;
  const ScaleSearchRow& kernel = scale_search_row(isa);
  const int64_t groups = ceil_div(p.inputs, p.group), tiles = ceil_div(p.rows, kSearchLanes);
  parallel_for(tiles * groups,
               [&](int64_t task) { search_tile(p, kernel, task / groups * kSearchLanes, task % groups); });
}

}  // namespace lowbit
