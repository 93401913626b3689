// The tasks of a matrix product: for each k-block, pack rows and multiply them by runs of panels; then the epilogue.
#include <algorithm>
#include <cstring>
#include <utility>

#include "base/fp_environment.h"
#include "drivers/gemm/gemm_call.h"

namespace lowbit {

GemmScratch GemmCall::cut_scratch() const {
  const GemmScratchSizes& size = schedule.scratch;
  Cutter cut(thread_block(size.bytes()));
  GemmScratch s;
  s.a = cut.take<char>(size.a);
  s.codes = cut.take<uint8_t>(size.codes);
  s.initial = cut.take<int32_t>(size.initial);
  s.c = cut.take<int32_t>(size.c);
  s.total = cut.take<int64_t>(size.total);
  s.row_sum = cut.take<int32_t>(size.rows);
  s.row_zero = cut.take<int32_t>(size.rows);
  s.wide_row_sum = cut.take<int64_t>(size.wide_rows);
  return s;
}

void GemmCall::run_task(int64_t index) const {
  const FpEnvironment environment;
  const GemmTask t = schedule.task(index);
  const GemmScratch s = cut_scratch();
  if (a.zero_per_row)
    for (int64_t r = 0; r < t.rows; ++r) s.row_zero[r] = a.zero[t.row + r] + a_shift;
  if (schedule.rows == RowAccess::image_lines) return run_image_lines(s, t);
  std::fill_n(s.row_sum, t.rows, 0);
  return schedule.problem.wide ? run_int64(s, t) : run_int32(s, t);
}

void GemmCall::run_int32(const GemmScratch& s, const GemmTask& t) const {
  int64_t quad = 0;
  do {
    const int64_t quads = std::min(b.k_block, b.quads - quad);
    GemmArgs x{};
    if (quads > 0) pack_rows(s, t, quad, quads, x);
    x.rows = t.rows, x.quads = quads;
    for (int64_t first = t.panel; first < t.panel + t.panels;) {
      const PanelRun run = schedule.run(t, first);
      x.c = run.in_place ? reinterpret_cast<int32_t*>(out) + t.row * run.c_stride + first * kGemmCols : s.c;
      x.c_stride = run.c_stride;
      if (quad == 0) initialize(s, first, run.panels);
      x.from = quad > 0 ? x.c : s.initial;
      x.from_stride = quad > 0 ? x.c_stride : 0;
      if (quads > 0) {
        multiply(x, quad, first, run.panels, run.in_place ? schedule.rows_per_call : t.rows);
      } else {  // k is 0
        for (int64_t r = 0; r < t.rows; ++r) std::copy_n(x.from, run.panels * kGemmCols, x.c + r * x.c_stride);
      }
      const bool has_epilogue = !run.in_place || b.has_zero || a.zero_per_row;
      if (quad + quads == b.quads && has_epilogue) apply_epilogue(s, x, t.row, 0, first, run.panels);
      first += run.panels;
    }
    quad += b.k_block;
  } while (quad < b.quads);
}

void GemmCall::run_int64(const GemmScratch& s, const GemmTask& t) const {
  const int64_t columns = t.panels * kGemmCols, outputs = t.rows * columns;
  std::fill_n(s.total, outputs, int64_t{0});
  std::fill_n(s.wide_row_sum, t.rows, int64_t{0});
  for (int64_t quad = 0; quad < b.quads; quad += b.k_block) {
    GemmArgs x{};
    x.rows = t.rows, x.quads = std::min(b.k_block, b.quads - quad);
    pack_rows(s, t, quad, x.quads, x);
    x.c = s.c, x.c_stride = columns;
    multiply(x, quad, t.panel, t.panels, t.rows);
    for (int64_t j = 0; j < outputs; ++j) s.total[j] += s.c[j];
    for (int64_t r = 0; r < t.rows; ++r) s.wide_row_sum[r] += std::exchange(s.row_sum[r], 0);
  }
  for (int64_t r = 0; r < t.rows; ++r)
    apply_epilogue_int64(s.total + r * columns, s.wide_row_sum[r], t.row + r, t.panel, t.panels);
}

void GemmCall::multiply(GemmArgs& x, int64_t quad, int64_t panel, int64_t panels, int64_t rows_per_call) const {
  x.paired = schedule.paired;
  x.columns = std::min(panels * kGemmCols, b.n - panel * kGemmCols);
  x.b_stride = x.quads * 4 * kGemmCols;
  x.b = b.codes.get() + quad * 4 * kGemmCols * b.panels + panel * x.b_stride;
  for (int64_t r = 0; r < x.rows; r += rows_per_call) {
    GemmArgs some = x;
    some.rows = std::min(rows_per_call, x.rows - r);
    some.a = static_cast<const char*>(x.a) + r * x.a_stride, some.c = x.c + r * x.c_stride;
    if (x.from != nullptr) some.from = x.from + r * x.from_stride;
    kernel.run(some);
  }
}

void GemmCall::initialize(const GemmScratch& s, int64_t panel, int64_t panels) const {
  const int64_t first = panel * kGemmCols, size = panels * kGemmCols;
  const int32_t* column_sum = b.column_sum.data() + first;
  const uint32_t zero = a.zero_per_row ? 0u : static_cast<uint32_t>(a.zero[0] + a_shift);
  for (int64_t i = 0; i < size; ++i)
    s.initial[i] = static_cast<int32_t>(0u - zero * static_cast<uint32_t>(column_sum[i]));
  if (epilogue.add == nullptr) return;
  for (int64_t i = 0; i < std::min(size, b.n - first); ++i)
    s.initial[i] =
        static_cast<int32_t>(static_cast<uint32_t>(s.initial[i]) + static_cast<uint32_t>(epilogue.add[first + i]));
}

}  // namespace lowbit
