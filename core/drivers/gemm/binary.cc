#include "drivers/gemm/binary.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/threads.h"

namespace lowbit {
namespace {

constexpr int64_t kRepackTask = 1 << 16;  // bytes

// The eight bits of a stream of `bytes` bytes from bit `at` on; 0 beyond its end.
uint8_t bits_at(const uint8_t* stream, int64_t bytes, int64_t at) {
  const int64_t i = at / 8;
  const unsigned low = i < bytes ? stream[i] : 0, high = i + 1 < bytes ? stream[i + 1] : 0;
  return static_cast<uint8_t>((low | high << 8) >> (at % 8));
}

// Bit j of byte i becomes bit i of byte j (Hacker's Delight, 7-3).
uint64_t transposed(uint64_t x) {
  uint64_t t = (x ^ x >> 7) & 0x00aa00aa00aa00aaull;
  x ^= t ^ t << 7;
  t = (x ^ x >> 14) & 0x0000cccc0000ccccull;
  x ^= t ^ t << 14;
  t = (x ^ x >> 28) & 0x00000000f0f0f0f0ull;
  return x ^ t ^ t << 28;
}

// A computed tile, or several side by side: 16-bit counts of bits that differ. Where k is too deep for 16 bits there is
// one tile, and `before` holds -2 times the counts of the k-blocks before.
struct BinaryTile {
  static constexpr int64_t kNext = kBinaryRows * kBinaryColumns;  // from the counts of a tile to the next one's
  int64_t row, rows, column, columns;
  const uint16_t* counts;
  const int32_t* before;  // [rows][kBinaryColumns], or null

  // The epilogue's arguments for `count` rows from r on, without scales and destination.
  BinaryEpilogueArgs epilogue_args(int64_t r, int64_t count, int64_t k) const {
    BinaryEpilogueArgs f{};
    f.counts = counts + r * kBinaryColumns, f.next = kNext, f.rows = count, f.n = columns,
    f.k = static_cast<int32_t>(k);
    f.fix = before ? before + r * kBinaryColumns : nullptr;
    return f;
  }
};

// Scales and biases of the columns of tiles.
struct BinaryColumnScales {
  float scale[kBinaryTiles * kBinaryColumns], bias[kBinaryTiles * kBinaryColumns];

  BinaryColumnScales(const BinaryScales& s, int64_t first, int64_t n) {
    for (int64_t j = 0; s.b != nullptr && j < n; ++j) {
      scale[j] = s.b[s.b_each ? first + j : 0];
      bias[j] = s.bias ? s.bias[first + j] : 0.0f;
    }
  }
};

constexpr int64_t kBinaryCodesAtOnce = 1 << 21;  // bytes of prepared rows, which stay in L2 or L3
constexpr int64_t kBinaryTask = 1 << 25;         // bit products per task; expanding a panel counts as 4 rows

// bits(first row, rows, room) gives rows of b.bytes each, b.bytes apart, perhaps in `room`; done(tile) takes a
// tile, or up to `most_tiles` of them.
template <class Bits, class Done>
void binary_tiles(int64_t m, const PackedBits& b, uint8_t last_mask, bool needs_room, int64_t most_tiles,
                  const Bits& bits, const Done& done) {
  if (m == 0 || b.columns == 0) return;
  const BinaryRow& row = gemm_binary_row(active_isa());
  const int64_t chunks = ceil_div(m, kBinaryRows);
  const int64_t chunk = round_up(ceil_div(m, chunks), 2);  // rows of each but the last, even
  const int64_t code_bytes = row.code_bytes * chunk * b.padded, room_bytes = needs_room ? chunk * b.bytes : 0;
  const int64_t batch = std::clamp<int64_t>(kBinaryCodesAtOnce / (code_bytes + room_bytes + 1), 1, chunks);
  const Aligned<uint8_t> codes = aligned<uint8_t>(batch * code_bytes), room = aligned<uint8_t>(batch * room_bytes);
  const auto codes_of = [&](int64_t i) { return codes.get() + i * code_bytes; };

  // k-blocks of nearly equal length, even in steps, and no longer than the kernel takes.
  const int64_t steps = b.padded / kBinaryStep, most = row.block / kBinaryStep, blocks = ceil_div(steps, most);
  const int64_t length = blocks == 0 ? 0 : round_up(ceil_div(steps, blocks), 2);

  const int64_t together = blocks > binary_most_blocks(row) ? 1 : most_tiles;

  for (int64_t first = 0; first < chunks; first += batch) {
    const int64_t count = std::min(batch, chunks - first);
    const auto rows_of = [&](int64_t i) { return std::max<int64_t>(0, std::min(chunk, m - (first + i) * chunk)); };
    parallel_for(count, [&](int64_t i) {
      if (rows_of(i) == 0) return;
      const uint8_t* a = bits((first + i) * chunk, rows_of(i), room.get() + i * room_bytes);
      row.prepare({a, b.bytes, rows_of(i), b.bytes, b.padded, last_mask, codes_of(i)});
    });

    const int64_t panel_products = (chunk + 4) * kBinaryColumns * (8 * b.padded + 64);
    const int64_t fair = ceil_div(count * b.panels, 4 * num_threads());  // four tasks per thread
    const int64_t panels = std::clamp<int64_t>(kBinaryTask / panel_products, 1, std::min(fair, b.panels));
    const int64_t tasks = ceil_div(b.panels, panels);
    parallel_for(count * tasks, [&](int64_t t) {
      alignas(64) uint8_t scratch[kBinaryScratch];
      alignas(64) uint16_t all_counts[kBinaryTiles * BinaryTile::kNext];
      alignas(64) int32_t before[kBinaryRows * kBinaryColumns];
      const int64_t i = t / tasks, rows = rows_of(i), begin = t % tasks * panels;
      if (rows == 0) return;
      const bool expand = row.expand != nullptr && rows >= kBinaryExpandRows;
      const int64_t end = std::min(begin + panels, b.panels);
      for (int64_t p = begin; p < end; ++p) {
        const int64_t tile = (p - begin) % together;
        uint16_t* counts = all_counts + tile * BinaryTile::kNext;
        if (blocks == 0) std::memset(counts, 0, sizeof(*counts) * BinaryTile::kNext);
        bool has_before = false;
        for (int64_t k = 0; k < blocks; ++k) {
          const int64_t from = k * length * kBinaryStep, to = std::min((k + 1) * length, steps) * kBinaryStep;
          const uint8_t* columns = b.panel(p) + from * kBinaryColumns;
          if (expand) row.expand(columns, to - from, scratch), columns = scratch;
          const bool fresh = k % binary_most_blocks(row) == 0;
          if (fresh && k > 0) {  // 16 bits may be full: continue in 32
            BinaryEpilogueArgs f{};
            f.counts = counts, f.rows = rows, f.n = f.stride = kBinaryColumns;
            f.fix = has_before ? before : nullptr, f.y = before;
            row.epilogue_s32(f);
            has_before = true;
          }
          row.dot({codes_of(i), b.padded, from, rows, columns, expand, to - from, counts, !fresh});
        }
        if (tile + 1 < together && p + 1 < end) continue;
        const int64_t column = (p - tile) * kBinaryColumns;
        done(BinaryTile{(first + i) * chunk, rows, column, std::min((tile + 1) * kBinaryColumns, b.columns - column),
                        all_counts, has_before ? before : nullptr});
      }
    });
  }
}

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

}  // namespace

PackedBits::PackedBits(const uint8_t* rows, int64_t n, int64_t column_bytes, uint8_t mask)
    : columns(n), bytes(column_bytes), padded(round_up(bytes, kBinaryStep)), panels(ceil_div(n, kBinaryColumns)) {
  data = aligned<uint8_t>(nbytes());
  parallel_for(panels, [&](int64_t p) {
    uint8_t* to = data.get() + p * padded * kBinaryColumns;
    std::memset(to, 0, static_cast<size_t>(padded * kBinaryColumns));
    const uint8_t* from = rows + p * kBinaryColumns * bytes;
    const int64_t count = std::min(kBinaryColumns, n - p * kBinaryColumns);
    for (int64_t i = 0; i < bytes; ++i) {
      const uint8_t keep = i + 1 < bytes ? 0xff : mask;
      for (int64_t j = 0; j < count; ++j) to[i * kBinaryColumns + j] = from[j * bytes + i] & keep;
    }
  });
}

void binary_matmul(const uint8_t* a, int64_t m, const PackedBits& b, int64_t k, const BinaryScales& scales, void* y) {
  const BinaryRow& row = gemm_binary_row(active_isa());
  const int64_t n = b.columns, bytes = b.bytes;
  binary_tiles(
      m, b, last_mask(k), false, kBinaryTiles, [&](int64_t first, int64_t, uint8_t*) { return a + first * bytes; },
      [&](const BinaryTile& tile) {
        const BinaryColumnScales columns(scales, tile.column, tile.columns);
        BinaryEpilogueArgs f = tile.epilogue_args(0, tile.rows, k);
        f.y = static_cast<uint8_t*>(y) + 4 * (tile.row * n + tile.column), f.stride = n;
        f.sb = columns.scale, f.bias = columns.bias;
        f.sa_each = scales.a_each, f.sa = scales.a + (f.sa_each ? tile.row : 0);
        scales.a ? row.epilogue_f32(f) : row.epilogue_s32(f);
      });
}

int64_t binary_matmul_workspace(int64_t m, int64_t n, int64_t k) {
  const int64_t padded = round_up((k + 7) / 8, kBinaryStep), chunks = ceil_div(m, kBinaryRows);
  const int64_t chunk = gemm_binary_row(active_isa()).code_bytes * kBinaryRows * padded;
  const int64_t columns = round_up(n, kBinaryColumns);
  return lines(std::min(chunks * chunk, std::max(kBinaryCodesAtOnce, chunk))) + columns * padded + kCacheLine;
}

void binary_align_rows(const uint8_t* stream, int64_t rows, int64_t k, uint8_t* out) {
  const int64_t bytes = (k + 7) / 8, all = (rows * k + 7) / 8;
  if (bytes == 0) return;
  const int64_t task_rows = std::max<int64_t>(1, kRepackTask / bytes);
  parallel_for(ceil_div(rows, task_rows), [&](int64_t t) {
    for (int64_t r = t * task_rows; r < std::min(rows, (t + 1) * task_rows); ++r) {
      const int64_t start = r * k / 8, shift = r * k % 8;
      const uint8_t* from = stream + start;
      uint8_t* to = out + r * bytes;
      for (int64_t i = 0; i + 1 < bytes; ++i) to[i] = static_cast<uint8_t>((from[i] | from[i + 1] << 8) >> shift);
      to[bytes - 1] = bits_at(stream, all, r * k + 8 * (bytes - 1)) & last_mask(k);
    }
  });
}

void binary_channels_last(const uint8_t* stream, int64_t images, int64_t channels, int64_t pixels, int64_t groups,
                          uint8_t* out) {
  const int64_t each = channels / groups, bytes = (each + 7) / 8, all = (images * channels * pixels + 7) / 8;
  parallel_for(images * groups * bytes, [&](int64_t t) {
    const int64_t image = t / (groups * bytes), group = t / bytes % groups, byte = t % bytes;
    const int64_t planes = std::min<int64_t>(8, each - 8 * byte);
    const int64_t start = (image * channels + group * each + 8 * byte) * pixels;
    uint8_t* to = out + image * pixels * groups * bytes + group * bytes + byte;
    for (int64_t p = 0; p < pixels; p += 8) {
      uint64_t eight = 0;  // one byte of pixels per channel
      for (int64_t c = 0; c < planes; ++c)
        eight |= static_cast<uint64_t>(bits_at(stream, all, start + c * pixels + p)) << (8 * c);
      eight = transposed(eight);
      for (int64_t i = 0; i < std::min<int64_t>(8, pixels - p); ++i, eight >>= 8)
        to[(p + i) * groups * bytes] = static_cast<uint8_t>(eight);
    }
  });
}

PackedBitsConv::PackedBitsConv(const uint8_t* w, const BinaryConvShape& s) : shape(s) {
  const int64_t row = s.taps() * s.bytes(), kh = s.kernel[0], kw = s.kernel[1];
  for (int64_t g = 0; g < s.groups; ++g) weights.emplace_back(w + g * s.outputs * row, s.outputs, row, 0xff);
  ones.resize(s.groups * (kh + 1) * (kw + 1) * s.outputs);
  for (int64_t g = 0; g < s.groups; ++g)
    for (int64_t o = 0; o < s.outputs; ++o)
      for (int64_t i = 0; i < kh; ++i) {
        int32_t line = 0;
        for (int64_t j = 0; j < kw; ++j) {
          const uint8_t* tap = w + (g * s.outputs + o) * row + (i * kw + j) * s.bytes();
          for (int64_t c = 0; c < s.bytes(); ++c) line += std::popcount(tap[c]);
          const auto at = [&](int64_t y, int64_t x) -> int32_t& {
            return ones[((g * (kh + 1) + y) * (kw + 1) + x) * s.outputs + o];
          };
          at(i + 1, j + 1) = at(i, j + 1) + line;
        }
      }
}

int32_t PackedBitsConv::correction(int64_t group, int64_t output, int64_t top, int64_t left, int64_t bottom,
                                   int64_t right) const {
  const int64_t kh = shape.kernel[0], kw = shape.kernel[1];
  const int32_t* first = ones.data() + group * (kh + 1) * (kw + 1) * shape.outputs + output;
  const auto at = [&](int64_t y, int64_t x) { return first[(y * (kw + 1) + x) * shape.outputs]; };
  const int32_t inside = at(bottom, right) - at(top, right) - at(bottom, left) + at(top, left);
  const int64_t missing = shape.taps() - (bottom - top) * (right - left);
  return static_cast<int32_t>(2 * (at(kh, kw) - inside) - missing * shape.channels);
}

int64_t PackedBitsConv::nbytes() const {
  int64_t sum = static_cast<int64_t>(ones.size()) * 4;
  for (const PackedBits& w : weights) sum += w.nbytes();
  return sum;
}

// Binary convolutions as matrix products: a row of bits per output pixel. Taps outside of the image count as 0,
// although their zero bits stand for -1; a correction per output adds the difference.
void binary_conv2d(const Window& a, bool channels_first, const uint8_t* x, const PackedBitsConv& w,
                   const BinaryScales& scales, void* y) {
  const BinaryRow& row = gemm_binary_row(active_isa());
  const BinaryConvShape& s = w.shape;
  const int64_t oh = a.out_height(), ow = a.out_width(), pixels = oh * ow, outputs = s.groups * s.outputs;
  constexpr int64_t kWide = 4;  // bytes of an int32 or a float
  uint8_t* out = static_cast<uint8_t*>(y);
  for (int64_t g = 0; g < s.groups; ++g) {
    binary_tiles(
        a.batch * pixels, w.weights[g], 0xff, true, 1,
        [&](int64_t first, int64_t rows, uint8_t* room) {
          const int64_t bytes = w.weights[g].bytes;
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
            f.sa = scales.a + (scales.a_each ? pixel.image : 0);
            f.sb = columns.scale;
            f.bias = columns.bias;
            scales.a ? row.epilogue_f32(f) : row.epilogue_s32(f);
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
