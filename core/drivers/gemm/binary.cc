#include "drivers/gemm/binary.h"

#include "drivers/gemm/binary_tiles.h"

namespace lowbit {
namespace {

constexpr int64_t kRepackTask = 1 << 16;  // bytes

int64_t padded_bytes(int64_t bytes) { return round_up(bytes, kBinaryStep); }

// The eight bits of a stream of `bytes` bytes from bit `at` on; 0 beyond its end.
uint8_t bits_at(const uint8_t* stream, int64_t bytes, int64_t at) {
  const int64_t i = at / 8;
  const unsigned low = i < bytes ? stream[i] : 0, high = i + 1 < bytes ? stream[i + 1] : 0;
  return static_cast<uint8_t>((low | high << 8) >> (at % 8));
}

uint8_t last_mask(int64_t k) { return static_cast<uint8_t>(0xff >> (-k & 7)); }

// Bit j of byte i becomes bit i of byte j (Hacker's Delight, 7-3).
uint64_t transposed(uint64_t x) {
  uint64_t t = (x ^ x >> 7) & 0x00aa00aa00aa00aaull;
  x ^= t ^ t << 7;
  t = (x ^ x >> 14) & 0x0000cccc0000ccccull;
  x ^= t ^ t << 14;
  t = (x ^ x >> 28) & 0x00000000f0f0f0f0ull;
  return x ^ t ^ t << 28;
}

}  // namespace

PackedBits::PackedBits(const uint8_t* rows, int64_t n, int64_t column_bytes, uint8_t mask)
    : columns(n), bytes(column_bytes), padded(padded_bytes(bytes)), panels(ceil_div(n, kBinaryColumns)) {
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

const uint8_t* PackedBits::panel(int64_t i) const { return data.get() + i * padded * kBinaryColumns; }
int64_t PackedBits::nbytes() const { return panels * padded * kBinaryColumns; }

void binary_matmul(const uint8_t* a, int64_t m, const PackedBits& b, int64_t k, const BinaryScales* scales, void* y) {
  const BinaryRow& row = gemm_binary_row(active_isa());
  const int64_t n = b.columns, bytes = b.bytes;
  binary_tiles(
      m, b, last_mask(k), false, kBinaryTiles, [&](int64_t first, int64_t, uint8_t*) { return a + first * bytes; },
      [&](const BinaryTile& tile) {
        const BinaryColumnScales columns(scales, tile.column, tile.columns);
        BinaryEpilogueArgs f = tile.epilogue_args(0, tile.rows, k);
        f.y = static_cast<uint8_t*>(y) + 4 * (tile.row * n + tile.column), f.stride = n;
        f.sb = columns.scale, f.bias = columns.bias;
        if (scales) f.sa_each = scales->a_each, f.sa = scales->a + (f.sa_each ? tile.row : 0);
        scales ? row.epilogue_f32(f) : row.epilogue_s32(f);
      });
}

int64_t binary_matmul_workspace(int64_t m, int64_t n, int64_t k) {
  const int64_t padded = padded_bytes((k + 7) / 8), chunks = ceil_div(m, kBinaryRows);
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

}  // namespace lowbit
