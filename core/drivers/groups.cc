#include "drivers/groups.h"

#include <algorithm>
#include <cstring>

#include "base/fp_environment.h"
#include "base/threads.h"

namespace lowbit {
namespace {

constexpr int64_t kTaskRows = 32, kTaskBlocks = 8, kTaskColumns = kTaskBlocks * kGroupCols;
constexpr int64_t kPaddedBytes = 4 << 20;  // of rows that are padded at a time

int64_t rows_at_once(const GroupSizes& b, int64_t m) {
  return std::clamp<int64_t>(kPaddedBytes / std::max<int64_t>(1, b.padded), 1, std::max<int64_t>(1, m));
}

}  // namespace

GroupSizes::GroupSizes(int64_t k_, int64_t n_, int bits_, int64_t block_)
    : k(k_),
      n(n_),
      block(block_),
      bits(bits_),
      groups((k + block - 1) / block),
      blocks((n + kGroupCols - 1) / kGroupCols) {
  const int64_t step = 32 / bits, last = groups == 0 ? 0 : k - (groups - 1) * block;
  steps = (block + step - 1) / step;
  last_steps = (last + step - 1) / step;
  padded = (groups == 0 ? 0 : (groups - 1) * steps + last_steps) * step;
}

PackedGroups::PackedGroups(const uint8_t* from, int64_t k_, int64_t n_, int bits_, int64_t block_, const float* scales,
                           const uint8_t* zeros, int32_t zero_for_all)
    : GroupSizes(k_, n_, bits_, block_), zero_all(zero_for_all) {
  const int64_t block_bytes = padded / (32 / bits) * kGroupCols * 4;
  codes = aligned<uint8_t>(blocks * block_bytes);
  scale = aligned<float>(blocks * groups * kGroupCols);
  if (zeros != nullptr) zero = aligned<uint8_t>(blocks * groups * kGroupCols);
  parallel_for(blocks, [&](int64_t b) {
    uint8_t* to = codes.get() + b * block_bytes;
    std::memset(to, 0, static_cast<size_t>(block_bytes));
    for (int64_t j = 0; j < kGroupCols; ++j) {
      const int64_t column = b * kGroupCols + j;
      for (int64_t g = 0; g < groups; ++g) {
        const int64_t at = (b * groups + g) * kGroupCols + j;
        scale[at] = column < n ? scales[column * groups + g] : 0.0f;
        if (zeros != nullptr) zero[at] = column < n ? zeros[column * groups + g] : 0;
      }
      if (column >= n) continue;
      for (int64_t i = 0; i < k; ++i) {
        const Place p = place_of(column, i);
        codes[p.byte] = static_cast<uint8_t>(codes[p.byte] | from[column * k + i] << p.shift);
      }
    }
  });
}

PackedGroups::Place PackedGroups::place_of(int64_t column, int64_t i) const {
  const int64_t step = 32 / bits, place = i / block * steps * step + i % block, within = place % step;
  const int64_t start = column / kGroupCols * (padded / step) * kGroupCols * 4;
  return {start + place / step * kGroupCols * 4 + column % kGroupCols * 4 + within % 4,
          static_cast<int>(within / 4) * bits};
}

void PackedGroups::unpack(uint8_t* to) const {
  for (int64_t column = 0; column < n; ++column) {
    for (int64_t i = 0; i < k; ++i) {
      const Place p = place_of(column, i);
      to[column * k + i] = static_cast<uint8_t>(codes[p.byte] >> p.shift & ((1 << bits) - 1));
    }
  }
}

int64_t GroupSizes::packed_bytes(bool zeros) const {
  const int64_t parameters = blocks * groups * kGroupCols;
  return blocks * kGroupCols * padded * bits / 8 + parameters * (zeros ? 5 : 4);
}

void group_matmul(const int8_t* a, int64_t m, const float* a_scale, bool scale_per_group, const PackedGroups& b,
                  const FloatFinish& finish, void* out) {
  if (m == 0 || b.n == 0) return;
  const Isa isa = active_isa();
  const GroupRow& kernel = group_row(isa, b.bits);
  const FinishRow& row = finish_row(isa, finish.result);
  const int64_t step = 32 / b.bits, at_once = rows_at_once(b, m);
  const Aligned<int8_t> rows = aligned<int8_t>(b.is_plain() ? 0 : at_once * b.padded);
  const Aligned<int32_t> sums = aligned<int32_t>(at_once * b.groups);
  const Aligned<float> bias = aligned<float>(finish.bias == nullptr ? 0 : b.blocks * kGroupCols);
  if (finish.bias != nullptr) {
    std::fill_n(bias.get(), b.blocks * kGroupCols, 0.0f);
    std::copy_n(finish.bias, b.n, bias.get());
  }
  const int64_t column_tasks = (b.blocks + kTaskBlocks - 1) / kTaskBlocks;
  for (int64_t base = 0; base < m; base += at_once) {
    const int64_t count = std::min(at_once, m - base);
    parallel_for(count, [&](int64_t r) {
      const int8_t* from = a + (base + r) * b.k;
      for (int64_t g = 0; g < b.groups; ++g) {
        const int64_t first = g * b.block, length = std::min(b.block, b.k - first);
        int32_t sum = 0;
        for (int64_t i = 0; i < length; ++i) sum += from[first + i];
        sums[r * b.groups + g] = sum;
        if (b.is_plain()) continue;
        int8_t* to = rows.get() + r * b.padded + g * b.steps * step;
        const int64_t room = (g + 1 < b.groups ? b.steps : b.last_steps) * step;
        std::memcpy(to, from + first, static_cast<size_t>(length));
        std::memset(to + length, 0, static_cast<size_t>(room - length));
      }
    });
    const int64_t row_tasks = (count + kTaskRows - 1) / kTaskRows;
    parallel_for(row_tasks * column_tasks, [&](int64_t i) {
      const FpEnvironment environment;
      // Tasks that share columns of b follow one another.
      const int64_t r = i % row_tasks * kTaskRows, block = i / row_tasks * kTaskBlocks;
      GroupArgs x{};
      x.rows = std::min(kTaskRows, count - r), x.blocks = std::min(kTaskBlocks, b.blocks - block);
      x.a_stride = b.is_plain() ? b.k : b.padded;
      x.a = b.is_plain() ? a + (base + r) * b.k : rows.get() + r * b.padded;
      x.a_sum = sums.get() + r * b.groups;
      x.a_scale = scale_per_group ? a_scale + (base + r) * b.groups : nullptr;
      x.b_stride = kGroupCols * b.padded * b.bits / 8;
      x.b = b.codes.get() + block * x.b_stride;
      x.scale = b.scale.get() + block * b.groups * kGroupCols;
      x.zero = b.zero ? b.zero.get() + block * b.groups * kGroupCols : nullptr;
      x.from_few_places = has_roomy_first_cache();
      x.zero_all = b.zero_all, x.groups = b.groups, x.steps = b.steps, x.last_steps = b.last_steps;
      x.c = static_cast<float*>(thread_block(kTaskRows * kTaskColumns * 4)), x.c_stride = kTaskColumns;
      kernel.run(x);
      FinishArgs f{};
      f.acc = x.c, f.acc_stride = kTaskColumns, f.rows = x.rows;
      f.n = std::min(x.blocks * kGroupCols, b.n - block * kGroupCols);
      f.row_scale = scale_per_group ? nullptr : a_scale + base + r;
      f.bias = finish.bias == nullptr ? nullptr : bias.get() + block * kGroupCols;
      f.floor = finish.floor, f.ceiling = finish.ceiling;
      f.out = static_cast<char*>(out) + ((base + r) * b.n + block * kGroupCols) * result_bytes(finish.result);
      f.out_stride = b.n;
      row.floats(f);
    });
  }
}

int64_t group_matmul_workspace(const GroupSizes& b, int64_t m) {
  const int64_t at_once = rows_at_once(b, m);
  return lines(b.is_plain() ? 0 : at_once * b.padded) + lines(at_once * b.groups * 4) +
         lines(b.blocks * kGroupCols * 4) + num_threads() * kTaskRows * kTaskColumns * 4;
}

}  // namespace lowbit
