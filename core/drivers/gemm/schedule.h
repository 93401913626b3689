// How one matrix product is cut into tasks, and where its operands and accumulators lie. Everything is decided from
// the problem and a CpuModel before any operand is read, so that a schedule can be printed and tested by itself.
//
//   tasks          rows of a by column panels of b (16 columns); threads take runs of consecutive tasks
//   k-blocks       within a task, so deep that its rows and panels stay in L2
//   accumulators   int32, in the result itself or in scratch; or totals in int64
#pragma once
#include <cstdint>

#include "base/cpu_model.h"
#include "base/memory.h"
#include "kernels/epilogue/epilogue.h"
#include "kernels/gemm/gemm.h"

namespace lowbit {

constexpr int64_t kMaxSegments = 64;  // of a window of an image

enum class RowLayout {
  contiguous,  // codes in memory, one row after another at a constant stride
  gathered,    // each row is copied together by a call
  image,       // rows are overlapping windows of image lines, which can be copied instead
};

// The lines of an image that a task copies: `window` for the first line of results, `line_step` for each further one,
// `pitch` codes each.
struct ImageWindow {
  int64_t pitch, line_step, window, segments;
  bool operator==(const ImageWindow&) const = default;
};

struct GemmProblem {
  int64_t m, n, k;
  int64_t threads;        // that may be used
  const GemmRow* kernel;  // the micro-kernel
  // b as it is packed: quads of all of k and of a k-block; whether it has a zero point.
  int64_t quads, k_block;
  bool b_has_zero;
  RowLayout layout;
  bool a_is_signed;
  int64_t a_stride;   // codes, of contiguous rows
  ImageWindow image;  // of image rows
  Result result;
  int64_t out_stride;  // elements
  bool wide;           // totals in int64
  bool operator==(const GemmProblem&) const = default;
};

enum class TileOrder { by_columns, by_rows };                                  // what consecutive tasks share
enum class RowAccess { in_place, packed_per_task, packed_once, image_lines };  // where the micro-kernel reads a

struct GemmTask {
  int64_t row, rows, panel, panels;
};

// Panels of a task whose accumulators exist together, for all its rows.
struct PanelRun {
  int64_t panel, panels;
  bool in_place;     // accumulators are the result; else they lie in scratch
  int64_t c_stride;  // elements from one row of accumulators to the next
};

// Elements of a thread's scratch.
struct GemmScratchSizes {
  int64_t a;          // bytes of packed rows, or of image lines
  int64_t codes;      // of gathered rows, or of an image line
  int64_t initial;    // int32 per column: what accumulators begin with
  int64_t c;          // int32 accumulators
  int64_t total;      // int64 totals
  int64_t rows;       // sums and zero points, int32
  int64_t wide_rows;  // sums, int64
  int64_t bytes() const {
    return lines(a) + lines(codes) + lines(initial * 4) + lines(c * 4) + lines(total * 8) + 2 * lines(rows * 4) +
           lines(wide_rows * 8);
  }
  bool operator==(const GemmScratchSizes&) const = default;
};

struct GemmSchedule {
  GemmProblem problem;
  int64_t panels;   // of b
  int64_t threads;  // that the work is worth
  TileOrder order;
  int64_t task_rows, task_panels;
  int64_t row_tasks, panel_tasks;
  RowAccess rows;
  int64_t packed_stride;   // bytes from one packed row to the next
  int64_t panels_at_once;  // of a run
  int64_t rows_per_call;   // of the micro-kernel, where accumulators are in place
  int64_t strip_lines;     // lines of results whose image lines are copied at once
  bool paired;             // the micro-kernel takes two panels at a time
  bool in_place;           // accumulators may be the result
  GemmScratchSizes scratch;

  int64_t tasks() const { return row_tasks * panel_tasks; }
  GemmTask task(int64_t index) const;
  PanelRun run(const GemmTask& task, int64_t first_panel) const;
  bool operator==(const GemmSchedule&) const = default;
};

GemmSchedule schedule_gemm(const GemmProblem& problem, const CpuModel& cpu);

// The most bytes of scratch that any schedule for this CPU takes per thread.
int64_t most_scratch_bytes(bool wide, const CpuModel& cpu);

inline int64_t operand_bytes(GemmOperand a) { return a == GemmOperand::s16 ? 2 : 1; }

// Whether rows at this stride compete for the same L1 sets.
constexpr bool aliases_4k(int64_t stride) { return stride % 4096 == 0; }

// The smallest row stride >= `bytes`, in whole lines, that avoids 4 KiB aliasing.
constexpr int64_t unaliased(int64_t bytes) { return lines(bytes) + (aliases_4k(lines(bytes)) ? kCacheLine : 0); }

}  // namespace lowbit
