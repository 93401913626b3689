// Depthwise convolution of whole tensors, NHWC: sizes, weights prepared once, runs. kernels/dwconv has the equation.
#pragma once
#include <vector>

#include "base/arch.h"
#include "base/memory.h"
#include "base/types.h"
#include "drivers/gemm/gemm.h"
#include "kernels/dwconv/dwconv.h"

namespace lowbit {

struct DwconvShape {
  int64_t batch, height, width, channels;
  int64_t kh, kw;
  int64_t stride_h, stride_w;
  int64_t top, left, bottom, right;  // padding, of x's zero point
  int64_t dilation_h, dilation_w;

  int64_t out_height() const { return (height + top + bottom - dilation_h * (kh - 1) - 1) / stride_h + 1; }
  int64_t out_width() const { return (width + left + right - dilation_w * (kw - 1) - 1) / stride_w + 1; }
  int64_t outputs() const { return batch * out_height() * out_width() * channels; }
};

// Weights in the order of one kernel row: for x of this code, and this kernel, stride and dilation.
struct DwconvWeights {
  const DwconvRow* row;
  int64_t channels, kh, kw, stride_w, dilation_w;
  int64_t elements;  // of packed
  Aligned<int16_t> packed;
  std::vector<int32_t> sum;  // of w - zw, a channel each

  // w: s8 or u8 codes [channels][kh][kw]; zero: a zero point a channel, or null. At most kDwconvMaxTaps taps.
  DwconvWeights(Isa isa, Code x_code, const DwconvShape& shape, Code w_code, const void* w, const int32_t* zero);
  int64_t nbytes() const { return elements * 2 + static_cast<int64_t>(sum.size()) * 4; }
  bool serves(const DwconvShape& s) const {
    return s.channels == channels && s.kh == kh && s.kw == kw && s.stride_w == stride_w && s.dilation_w == dilation_w;
  }
};

// Called for pixels of one output row, numbered through all images, while their sums [pixels][channels] are in L1;
// from any thread.
using DwconvEpilogue = void (*)(void* context, int64_t first_pixel, int64_t pixels, const int32_t* sums);

// y: [batch][out_height][out_width][channels]. Of the epilogue, scales are one a column (channel) or one, never one a
// row, and sums are int32. Any number of threads gives the same.
void dwconv(const DwconvShape& shape, const DwconvWeights& weights, const void* x, int32_t zero,
            const Epilogue& epilogue, void* y);
// add: what is added to the sums of each channel, or null.
void dwconv_each(const DwconvShape& shape, const DwconvWeights& weights, const void* x, int32_t zero,
                 const int32_t* add, DwconvEpilogue epilogue, void* context);

// Bytes one thread works in; and what a call allocates beside them.
int64_t dwconv_thread_bytes(const DwconvShape& shape, const DwconvWeights& weights);
int64_t dwconv_call_bytes(const DwconvShape& shape, const DwconvWeights& weights);

}  // namespace lowbit
