// Schedules of matrix products by themselves: no operand exists here, and CPUs are made up.
#include <algorithm>
#include <string>
#include <vector>

#include "drivers/gemm/packed_matrix.h"
#include "drivers/gemm/schedule.h"
#include "tests/check.h"

namespace lowbit {
namespace {

// Only their numbers count: full tiles of six, twelve and eight rows, the last of them in pairs of rows.
constexpr GemmRow kKernels[] = {{GemmFit::any, "u8, 6 rows", GemmOperand::u8, 6, 1, nullptr, nullptr, nullptr},
                                {GemmFit::any, "s16, 12 rows", GemmOperand::s16, 12, 1, nullptr, nullptr, nullptr},
                                {GemmFit::any, "s8, 8 rows by two", GemmOperand::s8, 8, 2, nullptr, nullptr, nullptr}};

struct NamedCpu {
  const char* name;
  CpuModel cpu;
};

std::vector<NamedCpu> cpus() {
  CpuModel one_port, two_ports, tiny, large;
  one_port.l1 = 32 << 10, one_port.l2 = 1 << 20;
  two_ports.l1 = 48 << 10, two_ports.l2 = 1 << 20, two_ports.dot_ports = 2;
  tiny.task_rows = 8, tiny.task_panels = 2, tiny.few_rows = 4, tiny.k_block = tiny.k_block_small_l2 = 16;
  tiny.thread_work = 1, tiny.shared_b = 0, tiny.l1_sets = 4, tiny.l1_written_ways = 1, tiny.staging = 1 << 12;
  large.task_rows = 500, large.task_panels = 80, large.few_rows = 60, large.k_block = 1024, large.dot_ports = 2;
  large.staging = 1 << 30, large.shared_b = 1 << 30;
  return {{"one port", one_port}, {"two ports", two_ports}, {"tiny", tiny}, {"large", large}};
}

struct Size {
  int64_t m, n, k;
};
// One, primes, around a tile, a task and a panel, few rows, short and deep, output rows a multiple of 4 KiB apart.
const Size kSizes[] = {{1, 1, 1},       {1, 517, 2000}, {2, 16, 8},       {3, 17, 13},     {5, 4100, 700},
                       {17, 41, 1700},  {18, 2048, 64}, {19, 2048, 64},   {20, 790, 789},  {95, 63, 33},
                       {96, 64, 2048},  {97, 270, 33},  {97, 3072, 39},   {100, 77, 2049}, {200, 1024, 300},
                       {256, 64, 3000}, {7, 5, 0},      {300, 2000, 1024}};

GemmProblem problem(const Size& size, const GemmRow& kernel, const CpuModel& cpu) {
  GemmProblem p{};
  p.m = size.m, p.n = size.n, p.k = size.k, p.threads = 1, p.kernel = &kernel;
  p.quads = PackedMatrix::quads_of(size.k), p.k_block = PackedMatrix::k_block_of(p.quads, cpu);
  p.a_stride = size.k, p.out_stride = size.n, p.result = Result::s32;
  p.image = {size.k, 1, 3, 3};
  return p;
}

// Every task lies inside of the result, and every row meets every panel exactly once.
bool covers_all_once(const GemmSchedule& s) {
  std::vector<uint8_t> seen(static_cast<size_t>(s.problem.m * s.panels), 0);
  for (int64_t i = 0; i < s.tasks(); ++i) {
    const GemmTask t = s.task(i);
    if (t.rows < 1 || t.panels < 1 || t.row < 0 || t.row + t.rows > s.problem.m || t.panel + t.panels > s.panels)
      return false;
    for (int64_t r = t.row; r < t.row + t.rows; ++r)
      for (int64_t p = t.panel; p < t.panel + t.panels; ++p)
        if (++seen[r * s.panels + p] > 1) return false;
  }
  return std::find(seen.begin(), seen.end(), 0) == seen.end();
}

// Runs cover a task's panels in order, accumulate in place only where that is allowed, and fit the scratch.
bool runs_are_sound(const GemmSchedule& s) {
  const GemmProblem& p = s.problem;
  const GemmScratchSizes& room = s.scratch;
  for (int64_t i = 0; i < s.tasks(); ++i) {
    const GemmTask t = s.task(i);
    const int64_t padded = round_up(t.rows, p.kernel->at_once);
    if (t.rows > room.rows) return false;
    if (p.wide && (padded * t.panels * kGemmCols > room.c || t.rows * t.panels * kGemmCols > room.total)) return false;
    if (s.rows != RowAccess::packed_once && s.rows != RowAccess::image_lines) {
      if (padded * s.packed_stride > room.a) return false;
      if (p.layout != RowLayout::contiguous && t.rows * std::min(p.k_block, p.quads) * 4 > room.codes) return false;
    }
    int64_t panel = t.panel;
    while (panel < t.panel + t.panels) {
      const PanelRun run = s.run(t, panel);
      if (run.panel != panel || run.panels < 1 || panel + run.panels > t.panel + t.panels) return false;
      if (run.c_stride < std::min(run.panels * kGemmCols, p.n - panel * kGemmCols)) return false;
      if (run.panels * kGemmCols > room.initial) return false;
      if (run.in_place) {
        if (p.result != Result::s32 || p.wide || padded != t.rows || run.c_stride != p.out_stride) return false;
        if ((panel + run.panels) * kGemmCols > p.n) return false;
      } else if (padded * run.c_stride > room.c || aliases_4k(run.c_stride * 4)) {
        return false;
      }
      panel += run.panels;
      // Accumulators of several k-blocks must all exist at once.
      if (!run.in_place && p.quads > p.k_block && panel != t.panel + t.panels && run.panel != t.panel) return false;
    }
  }
  return true;
}

bool rows_are_sound(const GemmSchedule& s, const CpuModel& cpu) {
  const GemmProblem& p = s.problem;
  const bool packs_once = s.rows == RowAccess::packed_once;
  if (packs_once && (s.threads > 1 || p.layout != RowLayout::contiguous || p.wide || aliases_4k(s.packed_stride)))
    return false;
  if (packs_once && p.m * s.packed_stride > cpu.staging) return false;
  if (s.rows == RowAccess::in_place && (p.kernel->a != GemmOperand::u8 || p.a_is_signed || p.b_has_zero)) return false;
  if (s.rows == RowAccess::image_lines && (p.layout != RowLayout::image || p.b_has_zero || p.wide)) return false;
  return s.threads >= 1 && s.threads <= p.threads && s.rows_per_call >= 1 &&
         s.scratch.bytes() <= most_scratch_bytes(p.wide, cpu);
}

void test_every_shape(const NamedCpu& named, const GemmRow& kernel, int64_t threads) {
  bool covered = true, runs = true, rows = true, same = true;
  for (const Size& size : kSizes) {
    for (int kind = 0; kind < 48; ++kind) {
      GemmProblem p = problem(size, kernel, named.cpu);
      p.threads = threads;
      p.layout = static_cast<RowLayout>(kind % 3);
      p.result = kind / 3 % 2 ? Result::u8 : Result::s32;
      p.b_has_zero = kind / 6 % 2, p.wide = kind / 12 % 2, p.a_is_signed = kind / 24;
      const GemmSchedule s = schedule_gemm(p, named.cpu);
      covered &= covers_all_once(s), runs &= runs_are_sound(s), rows &= rows_are_sound(s, named.cpu);
      same &= s == schedule_gemm(p, named.cpu);
    }
  }
  const std::string where =
      std::string(" on ") + named.name + ", " + kernel.method + ", " + std::to_string(threads) + " threads";
  report(covered, "schedule: tasks cover the result once" + where);
  report(runs, "schedule: runs cover a task and fit its scratch" + where);
  report(rows, "schedule: rows and scratch within bounds" + where);
  report(same, "schedule: the same for the same problem" + where);
}

// Decisions whose reasons docs/internals/gemm_schedule.md gives.
void test_decisions() {
  const CpuModel one_port = cpus()[0].cpu, two_ports = cpus()[1].cpu;
  const GemmRow& u8 = kKernels[0];
  GemmProblem p = problem({1024, 1024, 1024}, u8, one_port);
  report(schedule_gemm(p, one_port).rows == RowAccess::in_place, "schedule: u8 codes are read in place");
  p.a_stride = p.k = 4096;
  report(schedule_gemm(p, one_port).rows != RowAccess::in_place, "schedule: rows that alias are packed");
  p = problem({1024, 1024, 1024}, u8, one_port), p.a_is_signed = true;
  report(schedule_gemm(p, one_port).rows == RowAccess::packed_once, "schedule: one thread packs rows once");
  p.threads = 2;
  report(schedule_gemm(p, one_port).rows == RowAccess::packed_per_task, "schedule: two threads pack for themselves");
  report(schedule_gemm(p, one_port).order == TileOrder::by_columns, "schedule: int32 results divide the columns");
  p = problem({1024, 512, 512}, u8, one_port), p.result = Result::u8, p.threads = 2;
  report(schedule_gemm(p, one_port).order == TileOrder::by_rows, "schedule: threads share a small b");
  report(!schedule_gemm(p, one_port).paired && schedule_gemm(p, two_ports).paired, "schedule: two ports pair panels");
  p = problem({4, 16, 1024}, u8, one_port), p.threads = 8;
  report(schedule_gemm(p, one_port).threads == 1, "schedule: little work wakes no thread");
  p = problem({96, 2048, 64}, u8, one_port);
  report(schedule_gemm(p, one_port).rows_per_call == one_port.few_rows, "schedule: short k writes few aliasing rows");
  p = problem({96, 2040, 64}, u8, one_port);
  report(schedule_gemm(p, one_port).rows_per_call == 96, "schedule: other rows are written at once");
}

}  // namespace

void test_schedule() {
  for (const NamedCpu& named : cpus())
    for (const GemmRow& kernel : kKernels)
      for (const int64_t threads : {1, 2, 3, 16}) test_every_shape(named, kernel, threads);
  test_decisions();
}

}  // namespace lowbit
