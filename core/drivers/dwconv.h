// Depthwise convolution of whole tensors, NHWC: sizes, weights prepared once, runs. kernels/dwconv has the equation.
#pragma once
#include <vector>

#include "base/arch.h"
#include "base/types.h"
#include "kernels/dwconv/dwconv.h"

namespace lowbit {

struct DwconvShape {
  int64_t batch, height, width, channels;
  int64_t kh, kw;
  int64_t stride_h, stride_w;
  int64_t top, left, bottom, right;  // padding
  int64_t dilation_h, dilation_w;

  int64_t out_height() const { return (height + top + bottom - dilation_h * (kh - 1) - 1) / stride_h + 1; }
  int64_t out_width() const { return (width + left + right - dilation_w * (kw - 1) - 1) / stride_w + 1; }
  int64_t outputs() const { return batch * out_height() * out_width() * channels; }
};

struct alignas(64) CacheLine {
  int16_t elements[32];
};

// Weights in the order of one kernel row: for x of this code, and this kernel, stride and dilation.
struct DwconvWeights {
  const DwconvRow* row;
  int64_t channels, kh, kw, stride_w, dilation_w;
  std::vector<CacheLine> packed;
  std::vector<int32_t> sum;  // of w - zw, a channel each
};

// w: s8 or u8 codes [channels][kh][kw]; zero: a zero point a channel, or null. At most kDwconvMaxTaps taps.
DwconvWeights dwconv_prepack(Isa isa, Code x_code, const DwconvShape& shape, Code w_code, const void* w,
                             const int32_t* zero);

// x and its zero point, and what is added to each channel's sums (null: nothing).
struct DwconvInput {
  const void* x;
  int32_t zero;
  const int32_t* bias;
};
struct DwconvRequantize {
  const float* multiplier;  // a channel each, finite
  int32_t zero, qmin, qmax;
  bool is_signed;  // s8, else u8
};

// Called for pixels of one output row, numbered through all images, while their sums [pixels][channels] are in L1;
// from any thread.
using DwconvFinish = void (*)(void* context, int64_t first_pixel, int64_t pixels, const int32_t* sums);

// Bytes a run works in, with so many threads. With fewer bytes fewer threads work; for one is the least.
int64_t dwconv_workspace(const DwconvShape& shape, const DwconvWeights& weights, int threads);

// Into y [batch][out_height][out_width][channels]. Any number of threads gives the same.
void dwconv_sums(const DwconvShape& shape, const DwconvWeights& weights, const DwconvInput& input, int32_t* y,
                 void* workspace, int64_t bytes);
void dwconv_codes(const DwconvShape& shape, const DwconvWeights& weights, const DwconvInput& input,
                  const DwconvRequantize& requantize, void* y, void* workspace, int64_t bytes);
void dwconv_each(const DwconvShape& shape, const DwconvWeights& weights, const DwconvInput& input, DwconvFinish finish,
                 void* context, void* workspace, int64_t bytes);

}  // namespace lowbit
