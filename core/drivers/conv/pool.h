// Pooling of s8 or u8 codes over two axes. Images are [batch, height, width, channels], contiguous: NHWC as it is, NCHW
// with each channel an image of one channel. Each window has at least one position inside the image; dilation and
// groups are 1.
#pragma once
#include "base/types.h"
#include "drivers/conv/window.h"

namespace lowbit {

// The maximum of each window.
void max_pool(const Window& shape, Code code, const void* x, void* q);

// q = clamp(rne(f32(sum(x - z)) * ((s / count) / sy)) + zy), count: the positions inside, or all with count_padding.
struct AverageParams {
  float s, sy;
  int32_t z, zy, qmin, qmax;
  bool count_padding;
};
void average_pool(const Window& shape, const AverageParams& params, Code code, const void* x, Code out_code, void* q);

}  // namespace lowbit
