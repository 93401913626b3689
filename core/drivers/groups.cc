#include "drivers/groups.h"

#include <algorithm>
#include <cstring>

#include "base/fp_environment.h"
#include "base/threads.h"

namespace lowbit {
namespace {

constexpr int64_t kTaskRows = 32, kTaskColumns = 2 * kGroupCols;
constexpr int64_t kPaddedBytes = 4 << 20;  // of rows that are padded at a time

int64_t rows_at_once(const GroupSizes& b, int64_t m) {
  return std::clamp<int64_t>(kPaddedBytes / std::max<int64_t>(1, b.padded), 1, std::max<int64_t>(1, m));
}

}  // namespace

GroupSizes::GroupSizes(int64_t k_, int64_t n_, int bits_, int64_t block_)
    : k(k_), n(n_), block(block_), bits(bits_), groups((k + block - 1) / block), columns(round_up(n, kGroupVector)) {
  const int64_t step = 32 / bits, last = groups == 0 ? 0 : k - (groups - 1) * block;
  steps = (block + step - 1) / step;
  last_steps = (last + step - 1) / step;
  padded = (groups == 0 ? 0 : (groups - 1) * steps + last_steps) * step;
}

PackedGroups::PackedGroups(const uint8_t* from, int64_t k_, int64_t n_, int bits_, int64_t block_, const float* scales,
                           const uint8_t* zeros, int32_t zero_for_all)
    : GroupSizes(k_, n_, bits_, block_), zero_all(zero_for_all) {
  codes = aligned<uint8_t>(code_bytes(columns));
  scale = aligned<float>(columns * groups);
  if (zeros != nullptr) zero = aligned<uint8_t>(columns * groups);
  parallel_for((columns + kGroupCols - 1) / kGroupCols, [&](int64_t b) {
    const int64_t first = b * kGroupCols, wide = block_columns(first);
    std::memset(codes.get() + code_bytes(first), 0, static_cast<size_t>(code_bytes(wide)));
    for (int64_t column = first; column < first + wide; ++column) {
      for (int64_t g = 0; g < groups; ++g) {
        const int64_t at = first * groups + g * wide + column - first;
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
  const int64_t first = column / kGroupCols * kGroupCols;
  return {code_bytes(first) + (place / step * block_columns(first) + column - first) * 4 + within % 4,
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

int64_t GroupSizes::packed_bytes(bool zeros) const { return code_bytes(columns) + columns * groups * (zeros ? 5 : 4); }

void group_matmul(const int8_t* a, int64_t m, const float* a_scale, bool scale_per_group, const PackedGroups& b,
                  const FloatFinish& finish, void* out) {
  if (m == 0 || b.n == 0) return;
  const Isa isa = active_isa();
  const GroupRow& kernel = group_row(isa, b.bits);
  const FinishRow& row = finish_row(isa, finish.result);
  const int64_t step = 32 / b.bits, at_once = rows_at_once(b, m);
  const Aligned<int8_t> rows = aligned<int8_t>(b.is_plain() ? 0 : at_once * b.padded);
  const Aligned<int32_t> sums = aligned<int32_t>(at_once * b.groups);
  const Aligned<float> bias = aligned<float>(finish.bias == nullptr ? 0 : b.columns);
  if (finish.bias != nullptr) {
    std::fill_n(bias.get(), b.columns, 0.0f);
    std::copy_n(finish.bias, b.n, bias.get());
  }
  const int64_t column_tasks = (b.columns + kTaskColumns - 1) / kTaskColumns;
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
      const int64_t r = i % row_tasks * kTaskRows, first = i / row_tasks * kTaskColumns;
      float* c = static_cast<float*>(thread_block(kTaskRows * kTaskColumns * 4));
      GroupArgs x{};
      x.rows = std::min(kTaskRows, count - r);
      x.a_stride = b.is_plain() ? b.k : b.padded;
      x.a = b.is_plain() ? a + (base + r) * b.k : rows.get() + r * b.padded;
      x.a_sum = sums.get() + r * b.groups;
      x.a_scale = scale_per_group ? a_scale + (base + r) * b.groups : nullptr;
      x.zero_all = b.zero_all, x.groups = b.groups, x.steps = b.steps, x.last_steps = b.last_steps;
      x.c_stride = kTaskColumns;
      const int64_t end = std::min(first + kTaskColumns, b.columns);
      for (int64_t column = first; column < end; column += kGroupCols) {
        x.columns = b.block_columns(column);
        x.b = b.codes.get() + b.code_bytes(column);
        x.scale = b.scale.get() + column * b.groups;
        x.zero = b.zero ? b.zero.get() + column * b.groups : nullptr;
        x.c = c + column - first;
        kernel.run(x);
      }
      FinishArgs f{};
      f.acc = c, f.acc_stride = kTaskColumns, f.rows = x.rows, f.n = std::min(end, b.n) - first;
      f.row_scale = scale_per_group ? nullptr : a_scale + base + r;
      f.bias = finish.bias == nullptr ? nullptr : bias.get() + first;
      f.floor = finish.floor, f.ceiling = finish.ceiling;
      f.out = static_cast<char*>(out) + ((base + r) * b.n + first) * result_bytes(finish.result);
      f.out_stride = b.n;
      row.floats(f);
    });
  }
}

int64_t group_matmul_workspace(const GroupSizes& b, int64_t m) {
  const int64_t at_once = rows_at_once(b, m);
  return lines(b.is_plain() ? 0 : at_once * b.padded) + lines(at_once * b.groups * 4) + lines(b.columns * 4) +
         num_threads() * kTaskRows * kTaskColumns * 4;
}

}  // namespace lowbit
