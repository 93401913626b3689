// Depthwise convolution of NHWC tensors. kernels/dwconv has the equation.
#pragma once
#include <vector>

#include "base/arch.h"
#include "base/memory.h"
#include "base/types.h"
#include "drivers/conv/window.h"
#include "drivers/gemm/gemm.h"
#include "kernels/dwconv/dwconv.h"

namespace lowbit {

// Weights packed for one kernel: for a code type of x, a kernel size, a stride and a dilation.
struct DwconvWeights {
  const DwconvRow* row;
  int64_t channels, kh, kw, stride_w, dilation_w;
  int64_t elements;  // of packed
  Aligned<int16_t> packed;
  std::vector<int32_t> sum;  // of w - zw, per channel

  // w: s8 or u8 codes [channels][kh][kw]; zero: a zero point per channel, or null. At most kDwconvMaxTaps taps.
  DwconvWeights(Isa isa, Code x_code, const Window& shape, Code w_code, const void* w, const int32_t* zero);
  int64_t nbytes() const { return elements * 2 + static_cast<int64_t>(sum.size()) * 4; }
  bool serves(const Window& s) const {
    return s.channels == channels && s.kernel_h == kh && s.kernel_w == kw && s.stride_w == stride_w &&
           s.dilation_w == dilation_w;
  }
};

// y: [batch][out_height][out_width][channels]. The epilogue has one scale per column (channel) or one for all, none per
// row; accumulators are int32. The result does not depend on the number of threads.
void dwconv(const Window& shape, const DwconvWeights& weights, const void* x, int32_t zero, const Epilogue& epilogue,
            void* y);

// Bytes of scratch of a call, for all threads.
int64_t dwconv_workspace(const Window& shape, const DwconvWeights& weights);

}  // namespace lowbit
