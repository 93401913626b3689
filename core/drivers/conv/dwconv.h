// Depthwise convolution of NHWC tensors. kernels/dwconv has the equation.
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
  int64_t top, left, bottom, right;  // padding with x's zero point
  int64_t dilation_h, dilation_w;

  int64_t out_height() const { return (height + top + bottom - dilation_h * (kh - 1) - 1) / stride_h + 1; }
  int64_t out_width() const { return (width + left + right - dilation_w * (kw - 1) - 1) / stride_w + 1; }
  int64_t outputs() const { return batch * out_height() * out_width() * channels; }
};

// Weights packed for one kernel: for a code type of x, a kernel size, a stride and a dilation.
struct DwconvWeights {
  const DwconvRow* row;
  int64_t channels, kh, kw, stride_w, dilation_w;
  int64_t elements;  // of packed
  Aligned<int16_t> packed;
  std::vector<int32_t> sum;  // of w - zw, per channel

  // w: s8 or u8 codes [channels][kh][kw]; zero: a zero point per channel, or null. At most kDwconvMaxTaps taps.
  DwconvWeights(Isa isa, Code x_code, const DwconvShape& shape, Code w_code, const void* w, const int32_t* zero);
  int64_t nbytes() const { return elements * 2 + static_cast<int64_t>(sum.size()) * 4; }
  bool serves(const DwconvShape& s) const {
    return s.channels == channels && s.kh == kh && s.kw == kw && s.stride_w == stride_w && s.dilation_w == dilation_w;
  }
};

// Called on any thread for pixels of one output row, counted through all images, while their accumulators
// [pixels][channels] are in L1.
using DwconvEpilogue = void (*)(void* context, int64_t first_pixel, int64_t pixels, const int32_t* sums);

// y: [batch][out_height][out_width][channels]. The epilogue has one scale per column (channel) or one for all, none per
// row; accumulators are int32. The result does not depend on the number of threads.
void dwconv(const DwconvShape& shape, const DwconvWeights& weights, const void* x, int32_t zero,
            const Epilogue& epilogue, void* y);
// add: an int32 bias per channel, or null.
void dwconv_each(const DwconvShape& shape, const DwconvWeights& weights, const void* x, int32_t zero,
                 const int32_t* add, DwconvEpilogue epilogue, void* context);

// Bytes of scratch per thread, and per call.
int64_t dwconv_thread_bytes(const DwconvShape& shape, const DwconvWeights& weights);
int64_t dwconv_call_bytes(const DwconvShape& shape, const DwconvWeights& weights);

}  // namespace lowbit
