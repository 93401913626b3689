#include "drivers/gemm/gemm.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/fp_environment.h"
#include "base/threads.h"
#include "drivers/gemm/schedule.h"
#include "simd/vec.h"

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

// A thread's scratch, as GemmSchedule::scratch says.
struct GemmScratch {
  Cutter cut;
  char* a;
  uint8_t* codes;
  int32_t *initial, *c;
  int64_t* total;
  int32_t *row_sum, *row_zero;
  int64_t* wide_row_sum;

  explicit GemmScratch(const GemmScratchSizes& size)
      : cut(thread_block(size.bytes())),
        a(cut.take<char>(size.a)),
        codes(cut.take<uint8_t>(size.codes)),
        initial(cut.take<int32_t>(size.initial)),
        c(cut.take<int32_t>(size.c)),
        total(cut.take<int64_t>(size.total)),
        row_sum(cut.take<int32_t>(size.rows)),
        row_zero(cut.take<int32_t>(size.rows)),
        wide_row_sum(cut.take<int64_t>(size.wide_rows)) {}
};

// What the tasks of one call share, and what each of them does: pack rows, multiply, apply the epilogue.
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

  GemmCall(const CodeRows& rows, const PackedMatrix& matrix, const Epilogue& finish, void* to, int64_t stride)
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

  void run_task(int64_t index) const {
    const GemmTask t = schedule.task(index);
    const GemmScratch s(schedule.scratch);
    if (a.zero_per_row)
      for (int64_t r = 0; r < t.rows; ++r) s.row_zero[r] = a.zero[t.row + r] + a_shift;
    if (schedule.rows == RowAccess::image_lines) return run_image_lines(s, t);
    std::fill_n(s.row_sum, t.rows, 0);
    return schedule.problem.wide ? run_int64(s, t) : run_int32(s, t);
  }

  void prepare_columns() {
    const int64_t padding = b.panels * kGemmCols - b.n;
    if (epilogue.bias != nullptr) {
      bias = aligned<float>(b.n + padding);
      std::fill_n(std::copy_n(epilogue.bias, b.n, bias.get()), padding, 0.0f);
    }
    if (epilogue.result == Result::s32) return;
    scale = aligned<float>(b.n + padding);
    column_scales(epilogue, b.n, scale.get());
    std::fill_n(scale.get() + b.n, padding, 0.0f);
  }

  void pack_rows_once() {
    const int64_t depth = b.quads * 4, rows = round_up(a.rows, kernel.at_once), stride = schedule.packed_stride;
    packed_rows = aligned<char>(rows * stride);
    packed_sums = aligned<int32_t>(rows);
    for (int64_t r = 0; r < a.rows; ++r)
      packed_sums[r] =
          kernel.pack_a(a.codes + r * a.stride, b.k, a.is_signed, b.has_zero, packed_rows.get() + r * stride, depth);
    if (rows > a.rows) std::memset(packed_rows.get() + a.rows * stride, 0, static_cast<size_t>(stride));
  }

  // One k-block, [quad, quad + quads), of a task's rows as the micro-kernel reads it: x.a, x.a_stride. Adds up row
  // sums.
  void pack_rows(const GemmScratch& s, const GemmTask& t, int64_t quad, int64_t quads, GemmArgs& x) const {
    const int64_t first = quad * 4, depth = quads * 4, n = std::clamp<int64_t>(b.k - first, 0, depth);
    if (packed_rows) {
      x.a_stride = schedule.packed_stride;
      x.a = packed_rows.get() + t.row * x.a_stride + first * operand_bytes(kernel.a);
      if (quad == 0) std::copy_n(packed_sums.get() + t.row, t.rows, s.row_sum);
      return;
    }
    const bool gathers = a.codes == nullptr;
    const uint8_t* codes = gathers ? s.codes : a.codes + t.row * a.stride + first;
    const int64_t stride = gathers ? depth : a.stride;
    if (gathers)
      for (int64_t r = 0; r < t.rows; ++r) a.fetch(a.context, t.row + r, first, n, s.codes + r * stride);
    // The micro-kernel reads whole quads: codes beyond k, which b multiplies by 0, are readable in scratch only.
    if (schedule.rows == RowAccess::in_place && (gathers || n == depth)) {
      x.a = codes, x.a_stride = stride;
      return;
    }
    x.a = s.a, x.a_stride = depth * operand_bytes(kernel.a);
    for (int64_t r = 0; r < t.rows; ++r)
      s.row_sum[r] += kernel.pack_a(codes + r * stride, n, a.is_signed, b.has_zero, s.a + r * x.a_stride, depth);
    if (t.rows % kernel.at_once != 0) std::memset(s.a + t.rows * x.a_stride, 0, static_cast<size_t>(x.a_stride));
  }

  // What accumulators of these panels begin with: the zero point of a, and an integer bias. Each thread computes it for
  // itself, as lines that another thread wrote arrive slowly.
  void initialize(const GemmScratch& s, int64_t panel, int64_t panels) const {
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

  // x.rows by these panels, one k-block, `rows_per_call` rows at a time.
  void multiply(GemmArgs& x, int64_t quad, int64_t panel, int64_t panels, int64_t rows_per_call) const {
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

  void run_int32(const GemmScratch& s, const GemmTask& t) const {
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

  // Totals beyond int32.
  void run_int64(const GemmScratch& s, const GemmTask& t) const {
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

  // The segments of a window that lie in a k-block, in bytes of packed lines.
  int64_t block_segments(int64_t quad, int64_t quads, GemmSegment (&found)[kMaxSegments]) const {
    int64_t count = 0, at = 0;
    for (int64_t i = 0; i < a.lines->segment_count; ++i) {
      const GemmSegment& all = a.lines->segments[i];
      const int64_t begin = std::max(quad, at), end = std::min(quad + quads, at + all.quads);
      if (begin < end) found[count++] = {(all.offset + (begin - at) * 4) * operand_bytes(kernel.a), end - begin};
      at += all.quads;
    }
    return count;
  }

  // Rows read from copied image lines.
  void run_image_lines(const GemmScratch& s, const GemmTask& t) const {
    const LineRows& l = *a.lines;
    const int64_t bytes = operand_bytes(kernel.a), image = l.width * l.height;
    const bool copies_codes = kernel.a == GemmOperand::u8 && !a.is_signed;
    initialize(s, t.panel, t.panels);
    GemmArgs x{};
    x.a_stride = l.step * bytes, x.c_stride = schedule.run(t, t.panel).c_stride;
    for (int64_t first = t.row, end; first < t.row + t.rows; first = end) {
      // A strip: result lines of one image, as many as fit.
      const int64_t line = first / l.width;
      end = std::min({t.row + t.rows, (first / image + 1) * image, (line + schedule.strip_lines) * l.width});
      const int64_t result_lines = (end - 1) / l.width - line + 1;
      for (int64_t i = 0; i < (result_lines - 1) * l.line_step + l.window; ++i) {
        char* const packed = s.a + i * l.pitch * bytes;
        uint8_t* const codes = copies_codes ? reinterpret_cast<uint8_t*>(packed) : s.codes;
        l.fetch(a.context, line, i, codes);
        if (!copies_codes) kernel.pack_a(codes, l.pitch, a.is_signed, false, packed, l.pitch);
      }
      for (int64_t quad = 0; quad < b.quads; quad += b.k_block) {
        GemmSegment segments[kMaxSegments];
        x.quads = std::min(b.k_block, b.quads - quad);
        x.segments = segments, x.segment_count = block_segments(quad, x.quads, segments);
        for (int64_t r = first; r < end; r += x.rows) {  // rows of one result line
          x.rows = std::min(end, (r / l.width + 1) * l.width) - r;
          x.a = s.a + ((r / l.width - line) * l.line_step * l.pitch + r % l.width * l.step) * bytes;
          x.c = s.c + (r - first) * x.c_stride;
          x.from = quad > 0 ? x.c : s.initial, x.from_stride = quad > 0 ? x.c_stride : 0;
          multiply(x, quad, t.panel, t.panels, x.rows);
          if (quad + x.quads == b.quads) apply_epilogue(s, x, r, r - t.row, t.panel, t.panels);
        }
      }
    }
  }

  // x.rows rows of accumulators x.c, which begin at row `row` of the result and `done` rows into the task.
  void apply_epilogue(const GemmScratch& s, const GemmArgs& x, int64_t row, int64_t done, int64_t panel,
                      int64_t panels) const {
    const int64_t first = panel * kGemmCols, stride = schedule.problem.out_stride;
    EpilogueArgs f{};
    f.acc = x.c, f.acc_stride = x.c_stride, f.rows = x.rows, f.n = std::min(panels * kGemmCols, b.n - first);
    if (a.zero_per_row) f.by_a = b.column_sum.data() + first, f.row_a = s.row_zero + done;
    if (b.has_zero) f.by_b = b.zero.data() + first, f.row_b = s.row_sum + done;
    f.out_scale = 1;
    if (epilogue.result != Result::s32) {
      f.scale = scale.get() + first;
      f.bias = bias ? bias.get() + first : nullptr;
      if (epilogue.scale_per_row) f.row_scale = epilogue.row_scale + row, f.out_scale = epilogue.out_scale;
      f.floor = epilogue.floor, f.ceiling = epilogue.ceiling;
      f.zero = epilogue.zero, f.lo = epilogue.lo, f.hi = epilogue.hi;
    }
    f.out = out + (row * stride + first) * result_bytes(epilogue.result), f.out_stride = stride;
    epilogue_kernel.run(f);
  }

  // One element at a time: so deep a k is rare.
  void apply_epilogue_int64(const int64_t* total, int64_t row_sum, int64_t row, int64_t panel, int64_t panels) const {
    const int64_t first = panel * kGemmCols, n = std::min(panels * kGemmCols, b.n - first);
    const int64_t zero = a.zero[a.zero_per_row ? row : 0] + a_shift;
    const Epilogue& e = epilogue;
    for (int64_t i = 0; i < n; ++i) {
      const int64_t column = first + i, at = row * schedule.problem.out_stride + column;
      int64_t t = total[i] - zero * b.column_sum[column] - static_cast<int64_t>(b.zero[column]) * row_sum;
      if (e.add != nullptr) t += e.add[column];
      if (e.result == Result::s32) {
        reinterpret_cast<int64_t*>(out)[at] = t;
        continue;
      }
      const float sum = static_cast<float>(t);
      const float row_scale = e.row_scale == nullptr ? 1.0f : e.row_scale[e.scale_per_row ? row : 0];
      const float by = row_scale * e.scale[e.scale_per_column ? column : 0];
      if (e.result >= Result::s8) {
        const float low = static_cast<float>(e.lo - e.zero), high = static_cast<float>(e.hi - e.zero);
        const float steps = std::clamp(std::nearbyintf(sum * (by / e.out_scale)), low, high);
        reinterpret_cast<uint8_t*>(out)[at] = static_cast<uint8_t>(static_cast<int32_t>(steps) + e.zero);
        continue;
      }
      float y = sum * by;
      if (e.bias != nullptr) y += e.bias[column];
      y = std::clamp(y, e.floor, e.ceiling);
      if (e.result == Result::f32) narrow(reinterpret_cast<float*>(out) + at, y);
      if (e.result == Result::f16) narrow(reinterpret_cast<half_t*>(out) + at, y);
      if (e.result == Result::bf16) narrow(reinterpret_cast<bfloat_t*>(out) + at, y);
    }
  }
};

}  // namespace

void column_scales(const Epilogue& e, int64_t n, float* to) {
  e.scale_per_column ? std::copy_n(e.scale, n, to) : std::fill_n(to, n, e.scale[0]);
  if (e.scale_per_row) return;
  const float row = e.row_scale == nullptr ? 1.0f : e.row_scale[0];
  const float step = e.result >= Result::s8 ? e.out_scale : 1.0f;
  for (int64_t i = 0; i < n; ++i) to[i] = row * to[i] / step;
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
