#include "drivers/conv/conv.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "base/threads.h"

namespace lowbit {
namespace {

// Runs are short: calling memcpy would cost more than the copy.
inline void copy_run(uint8_t* to, const uint8_t* from, int64_t n) {
  const auto copy = [&]<int Bytes>(int64_t at) { std::memcpy(to + at, from + at, Bytes); };
  if (n >= 16) {
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) copy.template operator()<16>(i);
    if (i < n) copy.template operator()<16>(n - 16);
  } else if (n >= 8) {
    copy.template operator()<8>(0), copy.template operator()<8>(n - 8);
  } else if (n >= 4) {
    copy.template operator()<4>(0), copy.template operator()<4>(n - 4);
  } else {
    for (int64_t i = 0; i < n; ++i) to[i] = from[i];
  }
}

inline void fill_run(uint8_t* to, uint8_t code, int64_t n) {
  if (n > 0) std::memset(to, code, static_cast<size_t>(n));
}

struct Patches {
  const ConvShape& s;
  const uint8_t* x;  // at the group's first channel
  uint8_t fill;

  // Copies codes [first, first + n) of one output pixel's window, one kernel row at a time.
  void fetch(int64_t row, int64_t first, int64_t n, uint8_t* to) const {
    const int64_t ox = row % s.out_w, oy = row / s.out_w % s.out_h, image = row / (s.out_w * s.out_h);
    const int64_t line = s.line, length = s.run(), end = first + n;
    const int64_t left = ox * s.stride_w - s.left, top = oy * s.stride_h - s.top;
    const uint8_t* pixels = x + image * s.height * s.width * s.channels;
    // Whether a kernel row is contiguous in the image.
    const bool is_run = s.dilation_w == 1 && s.group_channels == s.channels;
    const bool is_inside = is_run && left >= 0 && left + s.kernel_w <= s.width && top >= 0 &&
                           top + (s.kernel_h - 1) * s.dilation_h < s.height;
    if (is_inside && first == 0 && n == s.depth()) {
      const int64_t below = s.dilation_h * s.width * s.channels;
      const uint8_t* from = pixels + (top * s.width + left) * s.channels;
      for (int64_t ky = 0; ky < s.kernel_h; ++ky) {
        copy_run(to + ky * line, from + ky * below, length);
        fill_run(to + ky * line + length, fill, line - length);
      }
      return;
    }
    for (int64_t at = first; at < end;) {
      const int64_t ky = at / line, from = at % line, until = std::min(line, from + end - at);
      const int64_t iy = top + ky * s.dilation_h, real = std::clamp(length, from, until);
      if (iy < 0 || iy >= s.height) {
        fill_run(to, fill, real - from);
      } else if (is_run) {
        copy_line(pixels + iy * s.width * s.channels, left, from, real, to);
      } else {
        copy_pixels(pixels + iy * s.width * s.channels, left, from, real, to);
      }
      fill_run(to + (real - from), fill, until - real);
      to += until - from, at += until - from;
    }
  }

  // Copies a line of x, from the left edge of the first window to the right edge of the last.
  void fetch_line(int64_t first, int64_t line, uint8_t* to) const {
    const int64_t c = s.group_channels, pixels_seen = (s.out_w - 1) * s.stride_w + (s.kernel_w - 1) * s.dilation_w + 1;
    const int64_t iy = first % s.out_h * s.stride_h - s.top + line;
    if (iy < 0 || iy >= s.height) return fill_run(to, fill, pixels_seen * c);
    const uint8_t* pixels = x + (first / s.out_h * s.height + iy) * s.width * s.channels;
    const int64_t before = std::clamp<int64_t>(s.left, 0, pixels_seen);
    const int64_t inside = std::clamp<int64_t>(s.width - std::max<int64_t>(0, -s.left), 0, pixels_seen - before);
    fill_run(to, fill, before * c);
    const uint8_t* from = pixels + std::max<int64_t>(0, -s.left) * s.channels;
    if (c == s.channels) {
      std::memcpy(to + before * c, from, static_cast<size_t>(inside * c));
    } else {
      for (int64_t i = 0; i < inside; ++i) copy_run(to + (before + i) * c, from + i * s.channels, c);
    }
    fill_run(to + (before + inside) * c, fill, (pixels_seen - before - inside) * c);
  }

  // Copies codes [from, until) of a kernel row whose first column is at `left` of an image row.
  void copy_line(const uint8_t* pixels, int64_t left, int64_t from, int64_t until, uint8_t* to) const {
    const int64_t c = s.channels;
    const int64_t begin = std::clamp<int64_t>(-left * c, from, until);
    const int64_t end = std::clamp<int64_t>((s.width - left) * c, begin, until);
    fill_run(to, fill, begin - from);
    copy_run(to + (begin - from), pixels + left * c + begin, end - begin);
    fill_run(to + (end - from), fill, until - end);
  }

  // The same, pixel by pixel.
  void copy_pixels(const uint8_t* pixels, int64_t left, int64_t from, int64_t until, uint8_t* to) const {
    const int64_t c = s.group_channels;
    for (int64_t at = from; at < until;) {
      const int64_t kx = at / c, channel = at % c, run = std::min(c - channel, until - at);
      const int64_t ix = left + kx * s.dilation_w;
      if (ix < 0 || ix >= s.width) {
        fill_run(to, fill, run);
      } else {
        copy_run(to, pixels + ix * s.channels + channel, run);
      }
      to += run, at += run;
    }
  }
};

// Transposes 16 by 16 bytes by interleaving rows i and i + 8, four times.
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
void transpose_items(const void* source, void* target, int64_t batch, int64_t rows, int64_t columns) {
  const Item* const from = static_cast<const Item*>(source);
  Item* const to = static_cast<Item*>(target);
  constexpr int64_t kTile = 64;  // source and destination tiles stay in L1
  const int64_t down = ceil_div(rows, kTile), across = ceil_div(columns, kTile);
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

// The padded lines of x that a line of results reads.
struct Lines {
  const Patches& patches;
  LineRows rows;
  std::vector<GemmSegment> segments;

  explicit Lines(const Patches& p) : patches(p) {
    const ConvShape& s = p.s;
    const int64_t c = s.group_channels, span = (s.kernel_w - 1) * s.dilation_w + 1;
    rows.width = s.out_w, rows.height = s.out_h;
    rows.pitch = ((s.out_w - 1) * s.stride_w + span) * c, rows.step = s.stride_w * c;
    rows.line_step = s.stride_h, rows.window = (s.kernel_h - 1) * s.dilation_h + 1;
    const int64_t runs = s.dilation_w == 1 ? 1 : s.kernel_w, length = s.line / runs;
    for (int64_t ky = 0; ky < s.kernel_h; ++ky)
      for (int64_t kx = 0; kx < runs; ++kx)
        segments.push_back({ky * s.dilation_h * rows.pitch + kx * s.dilation_w * c, length / 4});
    rows.segments = segments.data(), rows.segment_count = static_cast<int64_t>(segments.size());
    rows.fetch = [](const void* context, int64_t first, int64_t line, uint8_t* to) {
      static_cast<const Patches*>(context)->fetch_line(first, line, to);
    };
  }
  // Whether runs of codes are whole kernel steps. A line's padding is read from the codes that follow, by weights of 0.
  static bool fit(const ConvShape& s) {
    if (s.depth() == 0) return false;  // no step at all
    if (s.dilation_w == 1) return s.line % (kGemmQuads * 4) == 0;
    return s.line == s.run() && s.group_channels % (kGemmQuads * 4) == 0;
  }
};

}  // namespace

void convolve(const ConvShape& shape, const uint8_t* x, bool is_signed, int32_t zero, const PackedMatrix& w,
              const Epilogue& epilogue, void* out, int64_t stride) {
  const Patches patches{shape, x + shape.first_channel, static_cast<uint8_t>(zero)};
  std::optional<Lines> lines;
  CodeRows rows{};
  rows.rows = shape.rows(), rows.is_signed = is_signed, rows.zero = &zero;
  if (shape.is_pointwise()) {
    rows.codes = patches.x, rows.stride = shape.channels;
  } else {
    rows.context = &patches;
    rows.source = x, rows.source_bytes = shape.batch * shape.height * shape.width * shape.channels;
    rows.padding = patches.fill;
    if (Lines::fit(shape)) rows.lines = &lines.emplace(patches).rows;
    rows.fetch = [](const void* context, int64_t row, int64_t first, int64_t n, uint8_t* to) {
      static_cast<const Patches*>(context)->fetch(row, first, n, to);
    };
  }
  gemm(rows, w, epilogue, out, stride);
}

void transpose(const void* from, void* to, int64_t batch, int64_t rows, int64_t columns, int64_t item) {
  if (item == 1) return transpose_items<uint8_t>(from, to, batch, rows, columns);
  if (item == 2) return transpose_items<uint16_t>(from, to, batch, rows, columns);
  if (item == 4) return transpose_items<uint32_t>(from, to, batch, rows, columns);
  transpose_items<uint64_t>(from, to, batch, rows, columns);
}

}  // namespace lowbit
