// Depthwise convolution of codes: one filter per channel.
//
//   acc[p][c] = sum over taps of (x[tap][c] - zx) * (w[tap][c] - zw[c])  =  offset[c] + sum of x[tap][c] * w'[tap][c]
//   w' = w - zw, once, as int16;  offset[c] = bias[c] - zx * sum of w'[.][c], once;  padding is pixels of zx
//   q[p][c]   = clamp(rne(f32(acc) * multiplier[c]) + zero, qmin, qmax)
//
// Exact while taps * 255 * 255 + |bias| < 2^31.
#pragma once
#include "base/types.h"
#include "kernels/families.h"

namespace lowbit {

// A run of output pixels of one output row. Pixels of x are addressed by pointers, so padding and dilation are free:
// tap (i, j) of output pixel p starts at x[i * row_step + p * stride + j].
struct DwconvArgs {
  const void* const* x;
  int64_t row_step;
  int64_t pixels, channels;  // channels: at least `block` of the row
  const int16_t* weights;    // as written by `pack`
  const int32_t* offset;     // [channels], as written by `arrange`
  void* y;                   // [pixels][channels], int32 or codes
  const float* multiplier;   // the rest is for codes only. [channels], as `arrange` left it
  int32_t zero, qmin, qmax;  // of y
  bool is_signed;            // y is s8, else u8
  int64_t kh, kw, stride;    // rows for any filter only
};

struct DwconvRow {
  Code code;                                                    // of x: s8 or u8
  int kh, kw, stride;                                           // filter size and stride along the width; 0: any
  int block;                                                    // channels computed together
  int64_t (*packed)(int64_t channels, int64_t kh, int64_t kw);  // elements that `pack` writes
  void (*pack)(const int16_t* w, int64_t channels, int64_t kh, int64_t kw, int16_t* out);  // w: [channels][kh][kw]
  // One 4-byte number per channel; out has room for whole blocks.
  void (*arrange)(const void* in, int64_t channels, void* out);
  void (*sums)(const DwconvArgs&);
  void (*codes)(const DwconvArgs&);
};

constexpr int64_t kDwconvMaxTaps = 33024;  // more might not fit an int32

// The row for this filter size and stride, or the one for any.
const DwconvRow& dwconv_row(Isa isa, Code code, int64_t kh, int64_t kw, int64_t stride);

}  // namespace lowbit
