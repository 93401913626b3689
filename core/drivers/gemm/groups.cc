#include "drivers/gemm/groups.h"

#include <algorithm>
#include <cstring>

#include "drivers/gemm/float_tiles.h"

namespace lowbit {
GroupSizes::GroupSizes(int64_t k_, int64_t n_, int bits_, int64_t block_)
    : k(k_), n(n_), block(block_), bits(bits_), groups(ceil_div(k, block)), columns(round_up(n, kGroupVector)) {
  const int64_t step = 32 / bits, last = groups == 0 ? 0 : k - (groups - 1) * block;
  steps = ceil_div(block, step);
  last_steps = ceil_div(last, step);
  padded = (groups == 0 ? 0 : (groups - 1) * steps + last_steps) * step;
}

PackedGroups::PackedGroups(const uint8_t* from, int64_t k_, int64_t n_, int bits_, int64_t block_, const float* scales,
                           const uint8_t* zeros, int32_t zero_for_all)
    : GroupSizes(k_, n_, bits_, block_), has_zeros(zeros != nullptr), zero_all(zero_for_all) {
  data = aligned<uint8_t>(nbytes());
  parallel_for(ceil_div(columns, kGroupCols), [&](int64_t b) {
    const int64_t first = b * kGroupCols, wide = block_columns(first);
    std::memset(data.get() + bytes_of(first, has_zeros), 0, static_cast<size_t>(bytes_of(wide, has_zeros)));
    for (int64_t column = first; column < std::min(first + wide, n); ++column) {
      for (int64_t g = 0; g < groups; ++g) {
        uint8_t* const of_group = data.get() + scales_at(first, g);
        std::memcpy(of_group + (column - first) * 4, scales + column * groups + g, sizeof(float));
        if (has_zeros) of_group[wide * 4 + column - first] = zeros[column * groups + g];
      }
      for (int64_t i = 0; i < k; ++i) {
        const Place p = place_of(column, i);
        data[p.byte] = static_cast<uint8_t>(data[p.byte] | from[column * k + i] << p.shift);
      }
    }
  });
}

int64_t PackedGroups::scales_at(int64_t first, int64_t group) const {
  const int64_t all_steps = group * steps + (group + 1 < groups ? steps : last_steps), wide = block_columns(first);
  return bytes_of(first, has_zeros) + (all_steps * 4 + group * (has_zeros ? 5 : 4)) * wide;
}

PackedGroups::Place PackedGroups::place_of(int64_t column, int64_t i) const {
  const int64_t step = 32 / bits, group = i / block, within = i % block, part = within % step;
  const int64_t first = column / kGroupCols * kGroupCols, wide = block_columns(first);
  const int64_t of_step = (group * steps + within / step) * 4 + group * (has_zeros ? 5 : 4);  // per column
  return {bytes_of(first, has_zeros) + of_step * wide + (column - first) * 4 + part % 4,
          static_cast<int>(part / 4) * bits};
}

void PackedGroups::unpack(uint8_t* to) const {
  for (int64_t column = 0; column < n; ++column) {
    for (int64_t i = 0; i < k; ++i) {
      const Place p = place_of(column, i);
      to[column * k + i] = static_cast<uint8_t>(data[p.byte] >> p.shift & ((1 << bits) - 1));
    }
  }
}

void group_matmul(const int8_t* a, int64_t m, const float* a_scale, bool scale_per_group, const PackedGroups& b,
                  const FloatEpilogue& epilogue, void* out) {
  if (m == 0 || b.n == 0) return;
  const Isa isa = active_isa();
  const GroupwiseRow& kernel = gemm_groupwise_row(isa, b.bits);
  const EpilogueRow& row = epilogue_row(isa, epilogue.result);
  const int64_t step = 32 / b.bits, at_once = staged_rows(b.padded, m);
  const Aligned<int8_t> rows = aligned<int8_t>(b.is_plain() ? 0 : at_once * b.padded);
  const Aligned<int32_t> sums = aligned<int32_t>(at_once * b.groups);
  const Aligned<float> bias = aligned<float>(epilogue.bias == nullptr ? 0 : b.columns);
  if (epilogue.bias != nullptr) {
    std::fill_n(bias.get(), b.columns, 0.0f);
    std::copy_n(epilogue.bias, b.n, bias.get());
  }
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
    for_each_tile(
        count, b.columns, kGroupTaskColumns, [&](int64_t r, int64_t tile_rows, int64_t first, int64_t columns) {
          float* c = static_cast<float*>(thread_block(kFloatTaskRows * kGroupTaskColumns * 4));
          GroupwiseArgs x{};
          x.rows = tile_rows;
          x.a_stride = b.is_plain() ? b.k : b.padded;
          x.a = b.is_plain() ? a + (base + r) * b.k : rows.get() + r * b.padded;
          x.a_sum = sums.get() + r * b.groups;
          x.a_scale = scale_per_group ? a_scale + (base + r) * b.groups : nullptr;
          x.has_zeros = b.has_zeros, x.zero_all = b.zero_all, x.groups = b.groups, x.steps = b.steps,
          x.last_steps = b.last_steps;
          x.c_stride = kGroupTaskColumns;
          for (int64_t column = first; column < first + columns; column += kGroupCols) {
            x.columns = b.block_columns(column);
            x.b = b.block_at(column);
            x.c = c + column - first;
            kernel.run(x);
          }
          EpilogueArgs f{};
          f.acc = c, f.acc_stride = kGroupTaskColumns, f.rows = x.rows, f.n = std::min(first + columns, b.n) - first;
          f.row_scale = scale_per_group ? nullptr : a_scale + base + r;
          f.bias = epilogue.bias == nullptr ? nullptr : bias.get() + first;
          f.floor = epilogue.floor, f.ceiling = epilogue.ceiling;
          f.out = static_cast<char*>(out) + ((base + r) * b.n + first) * result_bytes(epilogue.result);
          f.out_stride = b.n;
          row.floats(f);
        });
  }
}

int64_t group_matmul_workspace(const GroupSizes& b, int64_t m) {
  const int64_t at_once = staged_rows(b.padded, m);
  return lines(b.is_plain() ? 0 : at_once * b.padded) + lines(at_once * b.groups * 4) + lines(b.columns * 4) +
         num_threads() * kFloatTaskRows * kGroupTaskColumns * 4;
}

}  // namespace lowbit
