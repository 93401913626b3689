// The tile loops that binary matrix products and convolutions share.
#pragma once
#include <algorithm>
#include <cstring>

#include "base/fp_environment.h"
#include "base/memory.h"
#include "base/threads.h"
#include "drivers/gemm/binary.h"
#include "kernels/gemm_binary/gemm_binary.h"

namespace lowbit {

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

  BinaryColumnScales(const BinaryScales* s, int64_t first, int64_t n) {
    for (int64_t j = 0; s != nullptr && j < n; ++j) {
      scale[j] = s->b[s->b_each ? first + j : 0];
      bias[j] = s->bias ? s->bias[first + j] : 0.0f;
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
      const FpEnvironment environment;
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

}  // namespace lowbit
