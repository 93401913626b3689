#include "drivers/gemm/schedule.h"

#include <algorithm>
#include <array>

namespace lowbit {
namespace {

constexpr int64_t kPanelBytes = kGemmCols * 4;  // of a row of int32 accumulators

// Panels of a task at most. Half as many again are still one task, as a small one costs as much packing as a whole one.
int64_t most_panels(const CpuModel& cpu) { return cpu.task_panels * 3 / 2; }

// Threads that the work is worth. Few rows take as long as reading b does.
int64_t worthwhile_threads(const GemmProblem& p, const CpuModel& cpu) {
  return std::clamp<int64_t>(std::max(p.m, cpu.gemv_rows) * p.n * p.k / cpu.thread_work, 1, p.threads);
}

// Whether threads share b and divide the rows. They do where each can keep all of b: threads that divide the columns
// write parts of the same lines. int32 results are excepted, as they are written row below row: the hardware prefetcher
// then fetches lines for writing that belong to the next thread.
bool shares_b(const GemmProblem& p, int64_t panels, const CpuModel& cpu) {
  return panels <= most_panels(cpu) || (p.result != Result::s32 && panels * kGemmCols * p.quads * 4 < cpu.shared_b);
}

// Rows of a task: as equal as whole tiles allow, and a task for each thread.
int64_t rows_of_task(const GemmProblem& p, bool shared, int64_t threads, const CpuModel& cpu) {
  const int64_t tasks = std::max<int64_t>(1, ceil_div(p.m, cpu.task_rows));
  const int64_t shares = std::clamp<int64_t>(p.m / (2 * p.kernel->rows), 1, threads);
  const int64_t parts = shared ? round_up(tasks, shares) : tasks;
  return std::min({p.m, cpu.task_rows, round_up(ceil_div(p.m, parts), p.kernel->rows)});
}

// Panels of a task: as equal as possible, and a task for each thread. Few rows read b once, in order: as much of it as
// accumulators fit. Where k is one short block, a task has as many panels as fit L2 at the usual depth.
int64_t panels_of_task(const GemmSchedule& s, bool shared, const CpuModel& cpu) {
  const GemmProblem& p = s.problem;
  const bool one_block = p.quads <= p.k_block && !p.wide && p.layout != RowLayout::image;
  int64_t tasks;
  if (p.m <= cpu.few_rows) {
    tasks = ceil_div(s.panels, std::max<int64_t>(1, cpu.task_rows * most_panels(cpu) / cpu.few_rows));
  } else {
    const int64_t whole = one_block
                              ? std::max(cpu.task_panels, cpu.task_panels * cpu.k_block / std::max<int64_t>(1, p.quads))
                              : cpu.task_panels;
    tasks = std::max<int64_t>(1, (s.panels + whole / 2 - 1) / whole);
  }
  const int64_t shares = shared ? ceil_div(s.threads, s.row_tasks) : s.threads;
  return ceil_div(s.panels, std::max(tasks, std::min(s.panels, shares)));
}

// Panels of a run. Several k-blocks need the accumulators of the whole task. One k-block takes parts of it, nearly
// equal and even in number, whose accumulators stay in L2.
int64_t panels_of_run(const GemmSchedule& s, const CpuModel& cpu) {
  const GemmProblem& p = s.problem;
  if (p.quads > p.k_block || p.wide || s.rows == RowAccess::image_lines) return s.task_panels;
  const int64_t room =
      std::max<int64_t>(2, cpu.task_rows * cpu.task_panels / round_up(s.task_rows, p.kernel->at_once) / 2 * 2);
  return round_up(ceil_div(s.task_panels, ceil_div(s.task_panels, room)), 2);
}

int64_t strip_bytes(const GemmProblem& p, int64_t result_lines) {
  const ImageWindow& i = p.image;
  // The micro-kernel reads whole steps, less than one beyond the last code.
  return (((result_lines - 1) * i.line_step + i.window) * i.pitch + kGemmQuads * 4) * operand_bytes(p.kernel->a);
}

// Lines of results whose image lines fit a strip; 0 where rows cannot be read from lines. Row sums, which zero points
// of b need, are not known for overlapping rows.
int64_t lines_of_strip(const GemmProblem& p, const CpuModel& cpu) {
  if (p.layout != RowLayout::image || p.wide || p.b_has_zero || p.kernel->at_once != 1) return 0;
  if (p.image.segments > kMaxSegments) return 0;
  int64_t count = 0;
  while (count < cpu.task_rows && strip_bytes(p, count + 1) <= cpu.image_strip) ++count;
  return count;
}

// Where the micro-kernel reads rows. One thread packs rows once if several tasks read them; with more, each task packs
// its own, as lines that another thread wrote arrive slowly.
RowAccess access_of(const GemmSchedule& s, const CpuModel& cpu) {
  const GemmProblem& p = s.problem;
  if (s.strip_lines > 0) return RowAccess::image_lines;
  const bool readable = p.kernel->a == GemmOperand::u8 && !p.a_is_signed && !p.b_has_zero;
  const bool contiguous = p.layout == RowLayout::contiguous;
  const bool aliases = contiguous && aliases_4k(p.a_stride);
  const bool whole_quads = p.k == p.quads * 4;
  if (s.threads == 1 && s.panel_tasks > 1 && p.m > cpu.few_rows && contiguous && !p.wide &&
      !(readable && whole_quads && !aliases) &&
      round_up(p.m, p.kernel->at_once) * unaliased(p.quads * 4 * operand_bytes(p.kernel->a)) <= cpu.staging)
    return RowAccess::packed_once;
  return readable && !aliases ? RowAccess::in_place : RowAccess::packed_per_task;
}

// Whether `rows` rows, each written one cache line wide before the next, need more lines of an L1 set than it has for
// them: a store then waits until an older line is evicted.
bool written_rows_alias(int64_t stride, int64_t rows, const CpuModel& cpu) {
  std::array<int16_t, 64> written{};
  const int64_t sets = std::min<int64_t>(cpu.l1_sets, written.size());
  for (int64_t r = 0; r < rows; ++r)
    if (++written[r * stride / kCacheLine % sets] > cpu.l1_written_ways) return true;
  return false;
}

GemmScratchSizes scratch_of(const GemmSchedule& s) {
  const GemmProblem& p = s.problem;
  const int64_t padded = round_up(s.task_rows, p.kernel->at_once), depth = std::min(p.k_block, p.quads) * 4;
  GemmScratchSizes z{};
  if (s.rows == RowAccess::image_lines) {
    z.a = strip_bytes(p, s.strip_lines), z.codes = p.image.pitch;
  } else {
    if (s.rows != RowAccess::packed_once) z.a = padded * s.packed_stride;
    if (p.layout != RowLayout::contiguous) z.codes = s.task_rows * depth;
  }
  z.initial = s.panels_at_once * kGemmCols;
  z.c = padded * unaliased(s.panels_at_once * kPanelBytes) / 4;
  z.rows = s.task_rows;
  if (p.wide) z.total = s.task_rows * s.task_panels * kGemmCols, z.wide_rows = s.task_rows;
  return z;
}

}  // namespace

GemmSchedule schedule_gemm(const GemmProblem& p, const CpuModel& cpu) {
  GemmSchedule s{};
  s.problem = p;
  s.panels = ceil_div(p.n, kGemmCols);
  s.threads = worthwhile_threads(p, cpu);
  const bool shared = shares_b(p, s.panels, cpu);
  s.order = shared && s.threads > 1 ? TileOrder::by_rows : TileOrder::by_columns;
  s.task_rows = rows_of_task(p, shared, s.threads, cpu);
  s.row_tasks = ceil_div(p.m, s.task_rows);
  s.task_panels = panels_of_task(s, shared, cpu);
  s.panel_tasks = ceil_div(s.panels, s.task_panels);

  s.strip_lines = lines_of_strip(p, cpu);
  s.rows = access_of(s, cpu);
  const int64_t depth = s.rows == RowAccess::packed_once ? p.quads : std::min(p.k_block, p.quads);
  s.packed_stride = depth * 4 * operand_bytes(p.kernel->a);
  if (s.rows == RowAccess::packed_once) s.packed_stride = unaliased(s.packed_stride);

  s.paired = cpu.dot_ports > 1;
  s.panels_at_once = panels_of_run(s, cpu);
  const bool aliases = p.result == Result::s32 && written_rows_alias(p.out_stride * 4, s.task_rows, cpu);
  s.in_place = p.result == Result::s32 && !p.wide && s.rows != RowAccess::image_lines &&
               (s.order == TileOrder::by_columns || !aliases);
  // For short K, write a few rows at a time so that aliasing output lines are complete before they are evicted.
  const bool is_short = p.quads <= (s.threads == 1 ? cpu.short_k : cpu.short_k_threads);
  s.rows_per_call = aliases && is_short ? std::min(cpu.few_rows, s.task_rows) : s.task_rows;
  s.scratch = scratch_of(s);
  return s;
}

GemmTask GemmSchedule::task(int64_t i) const {
  const bool by_rows = order == TileOrder::by_rows;
  const int64_t row = (by_rows ? i / panel_tasks : i % row_tasks) * task_rows,
                panel = (by_rows ? i % panel_tasks : i / row_tasks) * task_panels;
  return {row, std::min(task_rows, problem.m - row), panel, std::min(task_panels, panels - panel)};
}

PanelRun GemmSchedule::run(const GemmTask& t, int64_t first) const {
  int64_t count = std::min(panels_at_once, t.panel + t.panels - first);
  bool fits = in_place && t.rows % problem.kernel->at_once == 0;
  if (fits && (first + count) * kGemmCols > problem.n) {  // the last panel's padding has no place in the result
    const int64_t last = paired && count % 2 == 0 ? 2 : 1;
    fits = count > last;
    if (fits) count -= last;
  }
  return {first, count, fits, fits ? problem.out_stride : unaliased(count * kPanelBytes) / 4};
}

int64_t most_scratch_bytes(bool wide, const CpuModel& cpu) {
  const int64_t rows = cpu.task_rows + 1,
                depth = (std::max(cpu.k_block, cpu.k_block_small_l2) * 3 / 2 + kGemmQuads) * 4;
  const int64_t panels = std::max<int64_t>(2, cpu.task_rows * cpu.task_panels);  // of a run, of one row
  GemmScratchSizes s{};
  s.a = std::max(rows * depth * 2, cpu.image_strip), s.codes = std::max(rows * depth, cpu.image_strip);
  s.initial = panels * kGemmCols;
  s.c = rows * (most_panels(cpu) + 2) * kGemmCols;
  s.rows = rows;
  if (wide) s.total = s.c, s.wide_rows = rows;
  return s.bytes();
}

}  // namespace lowbit
