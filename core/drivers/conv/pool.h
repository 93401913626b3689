// Pooling of s8 or u8 codes over two axes.
#pragma once
#include <cstdint>

#include "base/types.h"

namespace lowbit {

// Images are [count, height, width, depth], contiguous: NHWC as it is, NCHW with each channel an image of depth 1.
// Each window has at least one position inside the image.
struct PoolShape {
  int64_t count, height, width, depth;
  int64_t kernel_h, kernel_w, stride_h, stride_w;
  int64_t top, left, bottom, right;  // padding

  int64_t out_height() const { return (height + top + bottom - kernel_h) / stride_h + 1; }
  int64_t out_width() const { return (width + left + right - kernel_w) / stride_w + 1; }
};

// The maximum of each window.
void max_pool(const PoolShape& shape, Code code, const void* x, void* q);

// q = clamp(rne(f32(sum(x - z)) * ((s / count) / sy)) + zy), count: the positions inside, or all with count_padding.
struct AverageParams {
  float s, sy;
  int32_t z, zy, qmin, qmax;
  bool count_padding;
};
void average_pool(const PoolShape& shape, const AverageParams& params, Code code, const void* x, Code out_code,
                  void* q);

}  // namespace lowbit
