// Matrix products and convolutions of bits that stand for +1 and -1: a dot product is k - 2 * popcount(a xor b).
#pragma once
#include <array>
#include <vector>

#include "base/memory.h"
#include "drivers/conv/window.h"
#include "kernels/gemm_binary/gemm_binary.h"

namespace lowbit {

// The bits of a last byte that k bits reach into.
inline uint8_t last_mask(int64_t k) { return static_cast<uint8_t>(0xff >> (-k & 7)); }

// The second operand, packed once: panels of 64 columns, whose bytes lie side by side.
struct PackedBits {
  int64_t columns, bytes, padded;  // bytes of a column, and rounded up to a kernel step
  int64_t panels;
  Aligned<uint8_t> data;

  // rows [n][bytes]; of each row's last byte only the bits in last_mask count.
  PackedBits(const uint8_t* rows, int64_t n, int64_t bytes, uint8_t last_mask);
  const uint8_t* panel(int64_t i) const { return data.get() + i * padded * kBinaryColumns; }
  int64_t nbytes() const { return panels * padded * kBinaryColumns; }
};

// y = f32(acc) * (sa * sb) + bias; without scales the int32 accumulators.
struct BinaryScales {
  const float* a = nullptr;  // one, or one per row of a (per image of a convolution)
  bool a_each = false;
  const float* b = nullptr;  // one, or one per column (output channel)
  bool b_each = false;
  const float* bias = nullptr;  // one per column; null: 0
};

// y [m][n] of bits a [m][ceil(k / 8)], whose padding is ignored, by b, whose columns have k bits. k < 2^31.
void binary_matmul(const uint8_t* a, int64_t m, const PackedBits& b, int64_t k, const BinaryScales& scales, void* y);
int64_t binary_matmul_workspace(int64_t m, int64_t n, int64_t k);  // at most, with packed b

// Copies rows of k bits, contiguous in a stream, to rows of whole bytes with zero padding.
void binary_align_rows(const uint8_t* stream, int64_t rows, int64_t k, uint8_t* out);

// Copies a stream of bits [images][channels][pixels] to [images][pixels][groups][whole bytes of a group's channels].
void binary_channels_last(const uint8_t* stream, int64_t images, int64_t channels, int64_t pixels, int64_t groups,
                          uint8_t* out);

struct BinaryConvShape {
  int64_t groups, channels, outputs;  // channels and outputs of one group
  std::array<int64_t, 2> kernel;
  int64_t bytes() const { return (channels + 7) / 8; }  // of a pixel of a group
  int64_t taps() const { return kernel[0] * kernel[1]; }
};

struct PackedBitsConv {
  BinaryConvShape shape;
  std::vector<PackedBits> weights;  // [group]
  std::vector<int32_t> ones;        // [group][kh + 1][kw + 1][outputs]: prefix sums of ones of w over taps

  // w [groups][outputs][kh][kw][bytes], padding bits 0.
  PackedBitsConv(const uint8_t* w, const BinaryConvShape& shape);
  PackedBitsConv(PackedBitsConv&&) = default;

  // What to add to y of an output whose taps outside of [top, bottom) x [left, right) count as 0, not as -1.
  int32_t correction(int64_t group, int64_t output, int64_t top, int64_t left, int64_t bottom, int64_t right) const;
  int64_t nbytes() const;
};

// x [batch][height][width][groups][bytes], padding bits 0. y [batch][out_height][out_width][outputs], or with
// channels_first [batch][outputs][out_height][out_width]; int32, or with scales f32.
void binary_conv2d(const Window& a, bool channels_first, const uint8_t* x, const PackedBitsConv& w,
                   const BinaryScales& scales, void* y);

}  // namespace lowbit
