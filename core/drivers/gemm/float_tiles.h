// What drivers with float results share: staging, tiles, and the epilogue of f64 totals.
#pragma once
#include <algorithm>

#include "base/cpu_model.h"
#include "base/fp_environment.h"
#include "base/memory.h"
#include "base/threads.h"
#include "drivers/gemm/groups.h"
#include "kernels/epilogue/epilogue.h"

namespace lowbit {

constexpr int64_t kFloatTaskRows = 32, kGroupTaskColumns = 2 * kGroupCols;

// The number of rows of `row_bytes` bytes that are converted in one step, so that tasks read them from L2 or L3.
inline int64_t staged_rows(int64_t row_bytes, int64_t m) {
  return std::clamp<int64_t>(cpu_model().staging / std::max<int64_t>(1, row_bytes), 1, std::max<int64_t>(1, m));
}

// Calls body(row, rows, column, columns) for each tile of a result, in parallel. Consecutive tiles share columns of b.
template <class Body>
void for_each_tile(int64_t rows, int64_t columns, int64_t tile_columns, const Body& body) {
  const int64_t row_tiles = ceil_div(rows, kFloatTaskRows);
  parallel_for(row_tiles * ceil_div(columns, tile_columns), [&](int64_t i) {
    const int64_t row = i % row_tiles * kFloatTaskRows, column = i / row_tiles * tile_columns;
    body(row, std::min(kFloatTaskRows, rows - row), column, std::min(tile_columns, columns - column));
  });
}

// A tile's totals [rows][stride], plus a bias or null, narrowed once and clamped to out [rows][out_stride]. sums:
// scratch for a row.
inline void narrow_totals(const EpilogueRow& kernel, const Epilogue& epilogue, const double* totals, int64_t stride,
                          const float* bias, int64_t rows, int64_t columns, float* sums, void* out,
                          int64_t out_stride) {
  EpilogueArgs f{};
  f.acc = sums, f.rows = 1, f.n = columns, f.floor = epilogue.floor, f.ceiling = epilogue.ceiling;
  for (int64_t r = 0; r < rows; ++r) {
    const double* total = totals + r * stride;
    for (int64_t c = 0; c < columns; ++c)
      sums[c] = static_cast<float>(bias == nullptr ? total[c] : total[c] + double{bias[c]});
    f.out = static_cast<char*>(out) + r * out_stride * result_bytes(epilogue.result);
    kernel.floats(f);
  }
}

}  // namespace lowbit
