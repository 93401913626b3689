// Integer matrix products, exact:
//
//   t[m][n] = sum over k of (a[m][k] - za[m]) * (b[k][n] - zb[n]), then the epilogue of kernels/epilogue
//
// Accumulators are int32 up to k = kExactK, where nothing can overflow; beyond, k-blocks are added in int64.
// A call runs in four steps: select_kernel, schedule_gemm (a pure function), packing, tasks that end in the epilogue.
#pragma once
#include "drivers/gemm/packed_matrix.h"
#include "kernels/epilogue/epilogue.h"

namespace lowbit {

constexpr int64_t kExactK = 33025;  // 255 * 255 * kExactK < 2^31

// Rows of a that are overlapping windows of image lines. A few lines are copied instead of every window.
struct LineRows {
  int64_t width, height;        // of a result's image; each pixel is a row of a
  int64_t pitch;                // codes of a copied line
  int64_t step;                 // codes from one pixel's window to the next
  int64_t line_step;            // input lines from one result line to the next
  int64_t window;               // input lines of a window
  const GemmSegment* segments;  // of a window, offsets in codes
  int64_t segment_count;
  // Copies the line at `line` below the first one that result line `first` (counted through all images) sees.
  void (*fetch)(const void* context, int64_t first, int64_t line, uint8_t* to);
};

// The left side: one byte per code.
struct CodeRows {
  int64_t rows;
  bool is_signed;
  const int32_t* zero;  // one, or one per row
  bool zero_per_row;
  // Contiguous rows, `stride` bytes apart. Null: rows are gathered by `fetch`, n codes of a row from `first` on.
  const uint8_t* codes;
  int64_t stride;
  void (*fetch)(const void* context, int64_t row, int64_t first, int64_t n, uint8_t* to);
  const void* context;
  // Gathered rows consist of the codes of `source` and of `padding`.
  const uint8_t* source;
  int64_t source_bytes;
  uint8_t padding;
  const LineRows* lines;  // the same rows as windows of image lines, or null
};

// The epilogue of accumulators. Arrays over n have n elements, arrays over m one per row.
struct Epilogue {
  Result result;
  const int32_t* add = nullptr;  // [n] integer bias
  const float* scale = nullptr;  // [n], or one
  bool scale_per_column = false;
  const float* row_scale = nullptr;  // [m], or one, or null for 1
  bool scale_per_row = false;
  const float* bias = nullptr;  // [n]
  float floor = 0, ceiling = 0;
  float out_scale = 1;
  int32_t zero = 0, lo = 0, hi = 0;
  bool wide = false;  // s32: int64 instead, for any depth
};

// Writes the n factors of columns: scales, times the scale of rows and divided by the step of the result, where all
// rows share these.
void column_scales(const Epilogue& epilogue, int64_t n, float* to);

// The fastest micro-kernel that is exact for these codes. Some ISAs have faster ones for small codes: the codes of a
// are read where that may find one.
const GemmRow& select_kernel(const CodeRows& a, const PackedMatrix& b);

// out: [m][n], rows `stride` elements apart.
void gemm(const CodeRows& a, const PackedMatrix& b, const Epilogue& epilogue, void* out, int64_t stride);

// Bytes that a call allocates at most, for all threads.
int64_t gemm_workspace(int64_t m, int64_t n, int64_t k, bool wide);

}  // namespace lowbit
