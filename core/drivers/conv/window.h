// A window that passes over images, shared by convolutions and pooling.
#pragma once
#include <cstdint>

namespace lowbit {

struct Window {
  int64_t batch, height, width, channels;
  int64_t kernel_h, kernel_w, stride_h, stride_w;
  int64_t top, left, bottom, right;  // padding
  int64_t dilation_h = 1, dilation_w = 1;
  int64_t groups = 1;

  // Places of the window.
  int64_t out_height() const { return (height + top + bottom - dilation_h * (kernel_h - 1) - 1) / stride_h + 1; }
  int64_t out_width() const { return (width + left + right - dilation_w * (kernel_w - 1) - 1) / stride_w + 1; }
  int64_t inputs() const { return batch * height * width * channels; }
  int64_t pixels() const { return batch * out_height() * out_width(); }
  int64_t taps() const { return kernel_h * kernel_w; }
};

}  // namespace lowbit
