// What the tasks of one call of gemm() share, and what each of them does: pack rows, multiply, apply the epilogue.
#pragma once
#include "drivers/gemm/gemm.h"
#include "drivers/gemm/schedule.h"

namespace lowbit {

// The fastest micro-kernel that is exact for these codes. Some ISAs have faster ones for small codes: the codes of a
// are read where that may find one.
const GemmRow& select_kernel(const CodeRows& a, const PackedMatrix& b);

// A thread's scratch, as GemmSchedule::scratch says.
struct GemmScratch {
  char* a;
  uint8_t* codes;
  int32_t *initial, *c;
  int64_t* total;
  int32_t *row_sum, *row_zero;
  int64_t* wide_row_sum;
};

struct GemmCall {
  const CodeRows& a;
  const PackedMatrix& b;
  const Epilogue& epilogue;
  char* out;
  const GemmRow& kernel;
  GemmSchedule schedule;
  const EpilogueRow& epilogue_kernel;
  int32_t a_shift;  // what packing adds to the codes of a, to have them in the micro-kernel's type
  // Per column, padded to whole panels: scales, times the row's scale and divided by the step of the result where all
  // rows share them; biases.
  Aligned<float> scale, bias;
  // Rows packed before any task, and their sums; null: each task packs its own.
  Aligned<char> packed_rows;
  Aligned<int32_t> packed_sums;

  GemmCall(const CodeRows& a, const PackedMatrix& b, const Epilogue& epilogue, void* out, int64_t stride);
  void run_task(int64_t index) const;

 private:
  void prepare_columns();
  void pack_rows_once();

  GemmScratch cut_scratch() const;
  // One k-block, [quad, quad + quads), of a task's rows as the micro-kernel reads it: x.a, x.a_stride. Adds up row
  // sums.
  void pack_rows(const GemmScratch& s, const GemmTask& t, int64_t quad, int64_t quads, GemmArgs& x) const;
  // What accumulators of these panels begin with: the zero point of a, and an integer bias. Each thread computes it for
  // itself, as lines that another thread wrote arrive slowly.
  void initialize(const GemmScratch& s, int64_t panel, int64_t panels) const;
  // x.rows by these panels, one k-block, `rows_per_call` rows at a time.
  void multiply(GemmArgs& x, int64_t quad, int64_t panel, int64_t panels, int64_t rows_per_call) const;

  void run_int32(const GemmScratch& s, const GemmTask& t) const;
  void run_int64(const GemmScratch& s, const GemmTask& t) const;        // totals beyond int32
  void run_image_lines(const GemmScratch& s, const GemmTask& t) const;  // rows read from copied image lines
  int64_t block_segments(int64_t quad, int64_t quads, GemmSegment (&found)[kMaxSegments]) const;

  // x.rows rows of accumulators x.c, which begin at row `row` of the result and `done` rows into the task.
  void apply_epilogue(const GemmScratch& s, const GemmArgs& x, int64_t row, int64_t done, int64_t panel,
                      int64_t panels) const;
  void apply_epilogue_int64(const int64_t* total, int64_t row_sum, int64_t row, int64_t panel, int64_t panels) const;
};

}  // namespace lowbit
