// Convolutions as matrix products whose rows are gathered while they are packed: no im2col matrix in memory.
#pragma once
#include "drivers/conv/window.h"
#include "drivers/gemm/gemm.h"

namespace lowbit {

// x is [batch][height][width][channels]. A row of the product is an output pixel; k runs over kernel rows, kernel
// columns and the channels of the group, and each kernel row is padded to `line`.
struct ConvShape : Window {
  int64_t out_h, out_w;
  int64_t first_channel, group_channels;  // of this group
  int64_t line;                           // k of a kernel row: at least kernel_w * group_channels; weights beyond are 0

  int64_t run() const { return kernel_w * group_channels; }
  int64_t rows() const { return batch * out_h * out_w; }
  int64_t depth() const { return kernel_h * line; }
  // Whether the rows of the product are the pixels themselves.
  bool is_pointwise() const {
    return kernel_h == 1 && kernel_w == 1 && line == group_channels && stride_h == 1 && stride_w == 1 &&
           out_h == height && out_w == width;
  }
};

// out: [rows][stride], n columns of it. x is padded with its zero point.
void convolve(const ConvShape& shape, const uint8_t* x, bool is_signed, int32_t zero, const PackedMatrix& w,
              const Epilogue& epilogue, void* out, int64_t stride);

// to[b][j][i] = from[b][i][j] for [batch][rows][columns] items of 1, 2, 4 or 8 bytes.
void transpose(const void* from, void* to, int64_t batch, int64_t rows, int64_t columns, int64_t item);

}  // namespace lowbit
