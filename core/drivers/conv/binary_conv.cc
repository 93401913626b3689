// Binary convolutions as matrix products: a row of bits per output pixel. Taps outside of the image count as 0,
// although their zero bits stand for -1; a correction per output adds the difference.
#include "drivers/gemm/binary_tiles.h"

namespace lowbit {
namespace {

// The taps of one axis inside the image: [first, last).
struct Taps {
  int64_t first, last;
  Taps(int64_t start, int64_t size, int64_t dilation, int64_t taps) {
    first = std::min(taps, ceil_div(std::max<int64_t>(0, -start), dilation));
    last = std::clamp(ceil_div(std::max<int64_t>(0, size - start), dilation), first, taps);
  }
};

struct Pixel {
  int64_t image, start[2];  // position of the first tap
  Pixel(const Window& a, int64_t row, int64_t oh, int64_t ow) : image(row / (oh * ow)) {
    start[0] = row / ow % oh * a.stride_h - a.top;
    start[1] = row % ow * a.stride_w - a.left;
  }
};

// Copies a row of bits: the taps of a group, zeros outside of the image.
void gather(const Window& a, const BinaryConvShape& s, const uint8_t* x, int64_t group, const Pixel& pixel,
            uint8_t* to) {
  const int64_t bytes = s.bytes(), pitch = s.groups * bytes, line = s.kernel[1] * bytes;
  const Taps down(pixel.start[0], a.height, a.dilation_h, s.kernel[0]);
  const Taps across(pixel.start[1], a.width, a.dilation_w, s.kernel[1]);
  for (int64_t i = 0; i < s.kernel[0]; ++i, to += line) {
    if (i < down.first || i >= down.last || across.first == across.last) {
      std::memset(to, 0, static_cast<size_t>(line));
      continue;
    }
    const int64_t y = pixel.start[0] + i * a.dilation_h;
    const uint8_t* from =
        x + ((pixel.image * a.height + y) * a.width + pixel.start[1]) * pitch + group * bytes;  // of tap 0
    std::memset(to, 0, static_cast<size_t>(across.first * bytes));
    if (a.dilation_w == 1 && s.groups == 1) {
      std::memcpy(to + across.first * bytes, from + across.first * bytes,
                  static_cast<size_t>((across.last - across.first) * bytes));
    } else {
      for (int64_t j = across.first; j < across.last; ++j)
        std::memcpy(to + j * bytes, from + j * a.dilation_w * pitch, static_cast<size_t>(bytes));
    }
    std::memset(to + across.last * bytes, 0, static_cast<size_t>((s.kernel[1] - across.last) * bytes));
  }
}

int ones_of(uint8_t x) {
  x = static_cast<uint8_t>(x - (x >> 1 & 0x55));
  x = static_cast<uint8_t>((x & 0x33) + (x >> 2 & 0x33));
  return (x + (x >> 4)) & 0x0f;
}

}  // namespace

PackedBitsConv::PackedBitsConv(const uint8_t* w, const BinaryConvShape& s) : shape_(s) {
  const int64_t row = s.taps() * s.bytes(), kh = s.kernel[0], kw = s.kernel[1];
  for (int64_t g = 0; g < s.groups; ++g) weights_.emplace_back(w + g * s.outputs * row, s.outputs, row, 0xff);
  ones_.resize(s.groups * (kh + 1) * (kw + 1) * s.outputs);
  for (int64_t g = 0; g < s.groups; ++g)
    for (int64_t o = 0; o < s.outputs; ++o)
      for (int64_t i = 0; i < kh; ++i) {
        int32_t line = 0;
        for (int64_t j = 0; j < kw; ++j) {
          const uint8_t* tap = w + (g * s.outputs + o) * row + (i * kw + j) * s.bytes();
          for (int64_t c = 0; c < s.bytes(); ++c) line += ones_of(tap[c]);
          const auto at = [&](int64_t y, int64_t x) -> int32_t& {
            return ones_[((g * (kh + 1) + y) * (kw + 1) + x) * s.outputs + o];
          };
          at(i + 1, j + 1) = at(i, j + 1) + line;
        }
      }
}

int32_t PackedBitsConv::correction(int64_t group, int64_t output, int64_t top, int64_t left, int64_t bottom,
                                   int64_t right) const {
  const int64_t kh = shape_.kernel[0], kw = shape_.kernel[1];
  const int32_t* ones = ones_.data() + group * (kh + 1) * (kw + 1) * shape_.outputs + output;
  const auto at = [&](int64_t y, int64_t x) { return ones[(y * (kw + 1) + x) * shape_.outputs]; };
  const int32_t inside = at(bottom, right) - at(top, right) - at(bottom, left) + at(top, left);
  const int64_t missing = shape_.taps() - (bottom - top) * (right - left);
  return static_cast<int32_t>(2 * (at(kh, kw) - inside) - missing * shape_.channels);
}

int64_t PackedBitsConv::nbytes() const {
  int64_t sum = static_cast<int64_t>(ones_.size()) * 4;
  for (const PackedBits& w : weights_) sum += w.nbytes();
  return sum;
}

void binary_conv2d(const Window& a, bool channels_first, const uint8_t* x, const PackedBitsConv& w,
                   const BinaryScales* scales, void* y) {
  const BinaryRow& row = gemm_binary_row(active_isa());
  const BinaryConvShape& s = w.shape();
  const int64_t oh = a.out_height(), ow = a.out_width(), pixels = oh * ow, outputs = s.groups * s.outputs;
  constexpr int64_t kWide = 4;  // bytes of an int32 or a float
  uint8_t* out = static_cast<uint8_t*>(y);
  for (int64_t g = 0; g < s.groups; ++g) {
    binary_tiles(
        a.batch * pixels, w.weights(g), 0xff, true, 1,
        [&](int64_t first, int64_t rows, uint8_t* room) {
          const int64_t bytes = w.weights(g).bytes;
          for (int64_t r = 0; r < rows; ++r) gather(a, s, x, g, Pixel(a, first + r, oh, ow), room + r * bytes);
          return room;
        },
        [&](const BinaryTile& tile) {
          const int64_t channel = g * s.outputs + tile.column;  // of y
          const BinaryColumnScales columns(scales, channel, tile.columns);
          int32_t fix[kBinaryColumns];
          alignas(64) uint8_t values[kBinaryRows * kBinaryColumns * kWide];
          for (int64_t r = 0; r < tile.rows; ++r) {
            const Pixel pixel(a, tile.row + r, oh, ow);
            const Taps down(pixel.start[0], a.height, a.dilation_h, s.kernel[0]);
            const Taps across(pixel.start[1], a.width, a.dilation_w, s.kernel[1]);
            BinaryEpilogueArgs f = tile.epilogue_args(r, 1, s.taps() * s.channels);
            if ((down.last - down.first) * (across.last - across.first) < s.taps()) {
              for (int64_t j = 0; j < tile.columns; ++j)
                fix[j] = w.correction(g, tile.column + j, down.first, across.first, down.last, across.last) +
                         (f.fix ? f.fix[j] : 0);
              f.fix = fix;
            }
            f.y = channels_first ? values + r * kBinaryColumns * kWide
                                 : out + ((tile.row + r) * outputs + channel) * kWide;
            if (scales) f.sa = scales->a + (scales->a_each ? pixel.image : 0);
            f.sb = columns.scale;
            f.bias = columns.bias;
            scales ? row.epilogue_f32(f) : row.epilogue_s32(f);
          }
          // Channels first: each column of the tile is a run of pixels per image.
          for (int64_t r = 0, run; channels_first && r < tile.rows; r += run) {
            const int64_t image = (tile.row + r) / pixels, at = (tile.row + r) % pixels;
            run = std::min(tile.rows - r, pixels - at);
            for (int64_t j = 0; j < tile.columns; ++j) {
              uint8_t* to = out + ((image * outputs + channel + j) * pixels + at) * kWide;
              const uint8_t* from = values + (r * kBinaryColumns + j) * kWide;
              for (int64_t i = 0; i < run; ++i) std::memcpy(to + i * kWide, from + i * kBinaryColumns * kWide, kWide);
            }
          }
        });
  }
}

}  // namespace lowbit
