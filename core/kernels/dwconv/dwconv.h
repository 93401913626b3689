// Depthwise convolution of codes: each channel with a filter of its own.
//
//   acc[p][c] = sum over taps of (x[tap][c] - zx) * (w[tap][c] - zw[c])  =  offset[c] + sum of x[tap][c] * w'[tap][c]
//   w' = w - zw, once, as int16;  offset[c] = bias[c] - zx * sum of w'[.][c], once;  padding is pixels of zx
//   q[p][c]   = clamp(rne(f32(acc) * multiplier[c]) + zero, qmin, qmax)
//
// Exact while taps * 255 * 255 + |bias| < 2^31.
#pragma once
#include "base/arch.h"
#include "base/types.h"

namespace lowbit {

// One run of output pixels of one output row. Pixels of x are found by pointers, so padding and dilation cost nothing
// here: tap (i, j) of output pixel p starts at x[i * row_step + p * stride + j].
struct DwconvArgs {
  const void* const* x;
  int64_t row_step;
  int64_t pixels, channels;  // channels: no fewer than the row's block
  const int16_t* weights;    // as `pack` left them
  const int32_t* offset;     // [channels], as `arrange` left it
  void* y;                   // [pixels][channels], int32 or codes
  const float* multiplier;   // the rest is for codes only. [channels], as `arrange` left it
  int32_t zero, qmin, qmax;  // of y
  bool is_signed;            // y is s8, else u8
  int64_t kh, kw, stride;    // rows for any kernel only
};

struct DwconvRow {
  Code code;           // of x: s8 or u8
  int kh, kw, stride;  // the kernel it is for, the stride that along the width; 0: any
  int block;           // channels in registers at once
  int64_t (*packed)(int64_t channels, int64_t kh, int64_t kw);                             // elements `pack` writes
  void (*pack)(const int16_t* w, int64_t channels, int64_t kh, int64_t kw, int16_t* out);  // w: [channels][kh][kw]
  void (*arrange)(const void* in, int64_t channels, void* out);  // 4-byte numbers a channel; room for whole blocks
  void (*sums)(const DwconvArgs&);
  void (*codes)(const DwconvArgs&);
};

constexpr int64_t kDwconvMaxTaps = 33024;  // more might not fit an int32

constexpr int kDwconvRows = 10;
const DwconvRow* dwconv_rows(Isa isa);
// The row for just this kernel and stride, or the one for any.
const DwconvRow& dwconv_row(Isa isa, Code code, int64_t kh, int64_t kw, int64_t stride);

}  // namespace lowbit
