// Convolutions as matrix products whose rows are gathered while they are packed: no im2col matrix in memory. And
// depthwise convolutions, of which kernels/dwconv has the equation.
#pragma once
#include <vector>

#include "drivers/conv/window.h"
#include "drivers/gemm/gemm.h"
#include "kernels/dwconv/dwconv.h"

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

// Weights packed for one kernel: for a code type of x, a kernel size, a stride and a dilation.
struct DwconvWeights {
  const DwconvRow* row;
  Window window;     // that they were packed for
  int64_t elements;  // of packed
  Aligned<int16_t> packed;
  std::vector<int32_t> sum;  // of w - zw, per channel

  // w: s8 or u8 codes [channels][kh][kw]; zero: a zero point per channel, or null. At most kDwconvMaxTaps taps.
  DwconvWeights(Isa isa, Code x_code, const Window& shape, Code w_code, const void* w, const int32_t* zero);
  int64_t nbytes() const { return elements * 2 + static_cast<int64_t>(sum.size()) * 4; }
  bool serves(const Window& s) const {
    const Window& w = window;
    return s.channels == w.channels && s.kernel_h == w.kernel_h && s.kernel_w == w.kernel_w &&
           s.stride_w == w.stride_w && s.dilation_w == w.dilation_w;
  }
};

// y: [batch][out_height][out_width][channels]. The epilogue has one scale per column (channel) or one for all, none per
// row; accumulators are int32. The result does not depend on the number of threads.
void dwconv(const Window& shape, const DwconvWeights& weights, const void* x, int32_t zero, const Epilogue& epilogue,
            void* y);

// Bytes of scratch of a call, for all threads.
int64_t dwconv_workspace(const Window& shape, const DwconvWeights& weights);

// to[b][j][i] = from[b][i][j] for [batch][rows][columns] items of 1, 2, 4 or 8 bytes.
void transpose(const void* from, void* to, int64_t batch, int64_t rows, int64_t columns, int64_t item);

}  // namespace lowbit
