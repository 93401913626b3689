// Products of matrices of codes: blocking, packing, threads. The kernels are in kernels/gemm and kernels/finish.
//
//   t[m][n] = sum over k of (a[m][k] - za[m]) * (b[k][n] - zb[n])   exactly, then as kernels/finish says.
//
// Sums run in int32 up to kExactK, where nothing can overflow; beyond, pieces of that depth are added in int64.
#pragma once
#include "drivers/gemm/packed_matrix.h"
#include "kernels/finish/finish.h"

namespace lowbit {

constexpr int64_t kExactK = 33025;  // 255 * 255 * kExactK < 2^31

// Rows of a that overlap: pixels of an image, of which each row takes a window. They are read from a few lines of the
// image, copied, instead of from as many copies as windows overlap.
struct LineRows {
  int64_t width, height;        // pixels of a result's line, one a row of a; lines of a result's image
  int64_t pitch;                // codes of a line that is copied
  int64_t step;                 // codes from one pixel's window to the next
  int64_t line_step;            // lines from one line of results to the next
  int64_t window;               // lines that a line of results sees
  const GemmSegment* segments;  // a window, offsets in codes
  int64_t segment_count;
  // Line `line`, of those that result line `first` (of all images) and later ones see, as `pitch` codes.
  void (*fetch)(const void* context, int64_t first, int64_t line, uint8_t* to);
};

// Rows of a: codes one a byte.
struct CodeRows {
  int64_t rows;
  bool is_signed;
  const int32_t* zero;  // one, or one a row
  bool zero_per_row;
  const uint8_t* codes;  // with `stride` bytes from row to row; or null, and
  int64_t stride;
  void (*fetch)(const void* context, int64_t row, int64_t first, int64_t n, uint8_t* to);  // n codes of a row, of
  const void* context;
  const uint8_t* source;  // these codes
  int64_t source_bytes;
  uint8_t also;           // and this one
  const LineRows* lines;  // how else to come by the rows, or null
};

// What becomes of the sums. Arrays over n have n elements; those over m have one for each row.
struct Epilogue {
  Result result;
  const int32_t* add = nullptr;  // [n] integer bias
  const float* scale = nullptr;  // [n], or one
  bool scale_per_column = false;
  const float* row_scale = nullptr;  // [m], or one, or null for 1
  bool scale_per_row = false;
  const float* bias = nullptr;  // [n]
  float floor, ceiling;
  float out_scale = 1;
  int32_t zero = 0, lo = 0, hi = 0;
  bool wide = false;  // s32: int64 instead, for any depth
};

// out: [m][n] with `stride` elements from row to row.
void gemm(const CodeRows& a, const PackedMatrix& b, const Epilogue& epilogue, void* out, int64_t stride);

// Bytes one thread works in; and what a call allocates beside them. wide: as the epilogue says.
int64_t gemm_thread_bytes(int64_t k, bool wide);
int64_t gemm_call_bytes(int64_t m, int64_t n, int64_t k);

}  // namespace lowbit
