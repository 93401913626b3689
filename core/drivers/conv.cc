#include "drivers/conv.h"

#include <algorithm>
#include <cstring>

#include "base/threads.h"

namespace lowbit {
namespace {

struct Patches {
  const ConvShape& s;
  const uint8_t* x;  // at the group's first channel
  uint8_t fill;

  // Codes [first, first + n) of one output pixel's patch, a kernel row at a time.
  void fetch(int64_t row, int64_t first, int64_t n, uint8_t* to) const {
    const int64_t ox = row % s.out_w, oy = row / s.out_w % s.out_h, image = row / (s.out_w * s.out_h);
    const int64_t line = s.kernel_w * s.group_channels, end = first + n;
    const int64_t left = ox * s.stride_w - s.left;
    for (int64_t at = first; at < end;) {
      const int64_t ky = at / line, from = at % line, until = std::min(line, from + end - at);
      const int64_t iy = oy * s.stride_h - s.top + ky * s.dilation_h;
      if (iy < 0 || iy >= s.height) {
        std::memset(to, fill, static_cast<size_t>(until - from));
      } else {
        copy_line(x + (image * s.height + iy) * s.width * s.channels, left, from, until, to);
      }
      to += until - from, at += until - from;
    }
  }

  // Codes [from, until) of a kernel row whose first column is at `left` of an image row.
  void copy_line(const uint8_t* pixels, int64_t left, int64_t from, int64_t until, uint8_t* to) const {
    const int64_t c = s.group_channels;
    if (s.dilation_w == 1 && c == s.channels) {  // neighbours in the image too: what is inside is one run
      const int64_t begin = std::clamp<int64_t>(-left * c, from, until);
      const int64_t end = std::clamp<int64_t>((s.width - left) * c, begin, until);
      std::memset(to, fill, static_cast<size_t>(begin - from));
      std::memcpy(to + (begin - from), pixels + left * c + begin, static_cast<size_t>(end - begin));
      std::memset(to + (end - from), fill, static_cast<size_t>(until - end));
      return;
    }
    for (int64_t at = from; at < until;) {
      const int64_t kx = at / c, channel = at % c, run = std::min(c - channel, until - at);
      const int64_t ix = left + kx * s.dilation_w;
      if (ix < 0 || ix >= s.width) {
        std::memset(to, fill, static_cast<size_t>(run));
      } else {
        std::memcpy(to, pixels + ix * s.channels + channel, static_cast<size_t>(run));
      }
      to += run, at += run;
    }
  }
};

// 16 by 16 bytes: interleaving row i with row i + 8, four times over, leaves columns where rows were.
void transpose_block(const uint8_t* from, int64_t columns, uint8_t* to, int64_t rows) {
  typedef uint8_t Bytes __attribute__((vector_size(16)));
  constexpr Bytes kLow = {0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23};
  constexpr Bytes kHigh = {8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  Bytes row[16], next[16];
  for (int i = 0; i < 16; ++i) std::memcpy(&row[i], from + i * columns, 16);
  for (int round = 0; round < 4; ++round) {
    for (int i = 0; i < 8; ++i) {
      next[2 * i] = __builtin_shuffle(row[i], row[i + 8], kLow);
      next[2 * i + 1] = __builtin_shuffle(row[i], row[i + 8], kHigh);
    }
    std::memcpy(row, next, sizeof(row));
  }
  for (int i = 0; i < 16; ++i) std::memcpy(to + i * rows, &row[i], 16);
}

template <class Item>
void transpose_items(const Item* from, Item* to, int64_t batch, int64_t rows, int64_t columns) {
  constexpr int64_t kTile = 64;  // both sides of a tile stay in L1
  const int64_t down = (rows + kTile - 1) / kTile, across = (columns + kTile - 1) / kTile;
  parallel_for(batch * down * across, [&](int64_t t) {
    const int64_t b = t / (down * across) * rows * columns, i0 = t / across % down * kTile, j0 = t % across * kTile;
    const int64_t i1 = std::min(rows, i0 + kTile), j1 = std::min(columns, j0 + kTile);
    const auto plainly = [&](int64_t i_first, int64_t i_end, int64_t j_first, int64_t j_end) {
      for (int64_t j = j_first; j < j_end; ++j)
        for (int64_t i = i_first; i < i_end; ++i) to[b + j * rows + i] = from[b + i * columns + j];
    };
    if constexpr (sizeof(Item) == 1) {
      const int64_t i2 = i0 + (i1 - i0) / 16 * 16, j2 = j0 + (j1 - j0) / 16 * 16;
      for (int64_t j = j0; j < j2; j += 16)
        for (int64_t i = i0; i < i2; i += 16)
          transpose_block(from + b + i * columns + j, columns, to + b + j * rows + i, rows);
      plainly(i0, i2, j2, j1);
      plainly(i2, i1, j0, j1);
    } else {
      plainly(i0, i1, j0, j1);
    }
  });
}

}  // namespace

void convolve(const ConvShape& shape, const uint8_t* x, bool is_signed, int32_t zero, const PackedMatrix& w,
              const Finish& finish, void* out, int64_t stride) {
  const Patches patches{shape, x + shape.first_channel, static_cast<uint8_t>(zero)};
  CodeRows rows{};
  rows.rows = shape.rows(), rows.is_signed = is_signed, rows.zero = &zero;
  if (shape.is_pointwise()) {
    rows.codes = patches.x, rows.stride = shape.channels;
  } else {
    rows.context = &patches;
    rows.fetch = [](const void* context, int64_t row, int64_t first, int64_t n, uint8_t* to) {
      static_cast<const Patches*>(context)->fetch(row, first, n, to);
    };
  }
  gemm(rows, w, finish, out, stride);
}

void transpose(const void* from, void* to, int64_t batch, int64_t rows, int64_t columns, int64_t item) {
  const auto run = [&]<class Item>(Item) {
    transpose_items(static_cast<const Item*>(from), static_cast<Item*>(to), batch, rows, columns);
  };
  switch (item) {
    case 1:
      return run(uint8_t{});
    case 2:
      return run(uint16_t{});
    case 4:
      return run(uint32_t{});
    default:
      return run(uint64_t{});
  }
}

}  // namespace lowbit
