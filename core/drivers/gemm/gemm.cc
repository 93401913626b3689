#include "drivers/gemm/gemm.h"

#include <algorithm>

#include "base/fp_environment.h"
#include "base/threads.h"
#include "drivers/gemm/gemm_call.h"

namespace lowbit {
namespace {

GemmProblem problem_of(const CodeRows& a, const PackedMatrix& b, const Epilogue& epilogue, int64_t stride,
                       const GemmRow& kernel) {
  GemmProblem p{};
  p.m = a.rows, p.n = b.n, p.k = b.k, p.threads = num_threads(), p.kernel = &kernel;
  p.quads = b.quads, p.k_block = b.k_block, p.b_has_zero = b.has_zero;
  p.layout = a.codes != nullptr ? RowLayout::contiguous : a.lines != nullptr ? RowLayout::image : RowLayout::gathered;
  p.a_is_signed = a.is_signed, p.a_stride = a.stride;
  if (a.lines != nullptr) p.image = {a.lines->pitch, a.lines->line_step, a.lines->window, a.lines->segment_count};
  p.result = epilogue.result, p.out_stride = stride, p.wide = epilogue.wide || b.k > kExactK;
  return p;
}

}  // namespace

GemmCall::GemmCall(const CodeRows& rows, const PackedMatrix& matrix, const Epilogue& finish, void* to, int64_t stride)
    : a(rows),
      b(matrix),
      epilogue(finish),
      out(static_cast<char*>(to)),
      kernel(select_kernel(rows, matrix)),
      schedule(schedule_gemm(problem_of(rows, matrix, finish, stride, kernel), cpu_model())),
      epilogue_kernel(epilogue_row(active_isa(), finish.result)),
      a_shift(kernel.a == GemmOperand::u8 && a.is_signed    ? 128
              : kernel.a == GemmOperand::s8 && !a.is_signed ? -128
                                                            : 0) {
  prepare_columns();
  if (schedule.rows == RowAccess::packed_once) pack_rows_once();
}

void gemm(const CodeRows& a, const PackedMatrix& b, const Epilogue& epilogue, void* out, int64_t stride) {
  if (a.rows == 0 || b.n == 0) return;
  const FpEnvironment environment;  // for the scales of columns
  const GemmCall call(a, b, epilogue, out, stride);
  parallel_for(call.schedule.tasks(), [&](int64_t i) { call.run_task(i); });
}

int64_t gemm_workspace(int64_t m, int64_t n, int64_t k, bool wide) {
  const CpuModel& cpu = cpu_model();
  const int64_t rows = round_up(m, 2), depth = round_up(ceil_div(k, 4), kGemmQuads) * 4;
  const int64_t packed_once = std::min(rows * unaliased(depth * 2), cpu.staging) + lines(rows * 4);
  return 3 * lines(round_up(n, kGemmCols) * 4) + packed_once +
         num_threads() * most_scratch_bytes(wide || k > kExactK, cpu);
}

}  // namespace lowbit
