// A window that passes over images, shared by convolutions and pooling.
#pragma once
#include <array>
#include <cstdint>

namespace lowbit {

struct Window {
  std::array<int64_t, 4> image;  // batch, height, width, channels
  std::array<int64_t, 2> kernel, stride;
  std::array<int64_t, 4> padding;  // top, left, bottom, right
  std::array<int64_t, 2> dilation;
  int64_t groups;

  // Places of the window along an axis: 0 height, 1 width.
  int64_t out(int axis) const {
    const int64_t size = image[axis + 1] + padding[axis] + padding[axis + 2];
    return (size - dilation[axis] * (kernel[axis] - 1) - 1) / stride[axis] + 1;
  }
  int64_t inputs() const { return image[0] * image[1] * image[2] * image[3]; }
  int64_t pixels() const { return image[0] * out(0) * out(1); }
};

}  // namespace lowbit
