// Rows of a, as the micro-kernel reads them: in place, packed once, packed per task, or from copied image lines.
#include <algorithm>
#include <cstring>

#include "drivers/gemm/gemm_call.h"

namespace lowbit {

void GemmCall::pack_rows_once() {
  const int64_t depth = b.quads * 4, rows = round_up(a.rows, kernel.at_once), stride = schedule.packed_stride;
  packed_rows = aligned<char>(rows * stride);
  packed_sums = aligned<int32_t>(rows);
  for (int64_t r = 0; r < a.rows; ++r)
    packed_sums[r] =
        kernel.pack_a(a.codes + r * a.stride, b.k, a.is_signed, b.has_zero, packed_rows.get() + r * stride, depth);
  if (rows > a.rows) std::memset(packed_rows.get() + a.rows * stride, 0, static_cast<size_t>(stride));
}

void GemmCall::pack_rows(const GemmScratch& s, const GemmTask& t, int64_t quad, int64_t quads, GemmArgs& x) const {
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

// The segments of a window that lie in a k-block, in bytes of packed lines.
int64_t GemmCall::block_segments(int64_t quad, int64_t quads, GemmSegment (&found)[kMaxSegments]) const {
  int64_t count = 0, at = 0;
  for (int64_t i = 0; i < a.lines->segment_count; ++i) {
    const GemmSegment& all = a.lines->segments[i];
    const int64_t begin = std::max(quad, at), end = std::min(quad + quads, at + all.quads);
    if (begin < end) found[count++] = {(all.offset + (begin - at) * 4) * operand_bytes(kernel.a), end - begin};
    at += all.quads;
  }
  return count;
}

void GemmCall::run_image_lines(const GemmScratch& s, const GemmTask& t) const {
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

}  // namespace lowbit
