#include "drivers/gemm/groups.h"

#include <algorithm>
#include <cstring>

#include "drivers/gemm/float_tiles.h"
#include "kernels/gemm_float/gemm_float.h"
#include "kernels/gemm_float_groupwise/gemm_float_groupwise.h"

namespace lowbit {
namespace {

constexpr int64_t kThreadBytes = lines(kFloatTaskRows * kGroupTaskColumns * 8) + lines(kGroupTaskColumns * 4);

}  // namespace

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
        uint8_t* const of_group = data.get() + offset(first, g, g + 1 < groups ? steps : last_steps);
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

int64_t PackedGroups::offset(int64_t first, int64_t group, int64_t step) const {
  return bytes_of(first, has_zeros) + ((group * steps + step) * 4 + group * (has_zeros ? 5 : 4)) * block_columns(first);
}

PackedGroups::Place PackedGroups::place_of(int64_t column, int64_t i) const {
  const int64_t step = 32 / bits, within = i % block, part = within % step, first = column / kGroupCols * kGroupCols;
  return {offset(first, i / block, within / step) + (column - first) * 4 + part % 4, static_cast<int>(part / 4) * bits};
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
                  const Epilogue& epilogue, void* out) {
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

void float_matmul(const FloatInput& input, const PackedGroups& b, const Epilogue& epilogue, void* out) {
  if (input.m == 0 || b.n == 0) return;
  const Isa isa = active_isa();
  const FloatGroupwiseRow& kernel = gemm_float_groupwise_row(isa, b.bits);
  const EpilogueRow& narrow = epilogue_row(isa, epilogue.result);
  const auto widen = gemm_float_row(isa, input.in).widen;
  const bool is_ready = input.in == Element::f32 && b.is_plain();
  const int64_t step = 32 / b.bits, at_once = is_ready ? input.m : staged_rows(b.padded * 4, input.m);
  // A widened group is followed by zeros, which the next group overwrites; the last one has padding for them.
  const Aligned<float> widened = aligned<float>(is_ready ? 0 : at_once * b.padded + kFloatPad);
  for (int64_t base = 0; base < input.m; base += at_once) {
    const int64_t count = std::min(at_once, input.m - base);
    const float* x = is_ready ? static_cast<const float*>(input.x) + base * b.k : widened.get();
    for (int64_t r = 0; r < (is_ready ? 0 : count); ++r) {
      const FpEnvironment environment;
      const char* from = static_cast<const char*>(input.x) + (base + r) * b.k * element_bytes(input.in);
      const int64_t length = b.is_plain() ? b.k : b.block, room = b.is_plain() ? b.k : b.steps * step;
      for (int64_t first = 0, at = r * b.padded; first < b.k; first += length, at += room)
        widen(from + first * element_bytes(input.in), std::min(length, b.k - first), widened.get() + at);
    }
    for_each_tile(count, b.columns, kGroupTaskColumns, [&](int64_t r, int64_t rows, int64_t first, int64_t columns) {
      Cutter scratch(thread_block(kThreadBytes));
      double* const totals = scratch.take<double>(kFloatTaskRows * kGroupTaskColumns);
      float* const sums = scratch.take<float>(kGroupTaskColumns);
      FloatGroupwiseArgs a{};
      a.rows = rows, a.x = x + r * b.padded, a.x_stride = b.padded;
      a.has_zeros = b.has_zeros, a.zero_all = b.zero_all;
      a.groups = b.groups, a.steps = b.steps, a.last_steps = b.last_steps, a.total_stride = kGroupTaskColumns;
      for (int64_t column = first; column < first + columns; column += kGroupCols) {
        a.columns = b.block_columns(column), a.b = b.block_at(column), a.totals = totals + column - first;
        kernel.run(a);
      }
      const float* bias = epilogue.bias == nullptr ? nullptr : epilogue.bias + first;
      narrow_totals(narrow, epilogue, totals, kGroupTaskColumns, bias, rows, std::min(first + columns, b.n) - first,
                    sums, static_cast<char*>(out) + ((base + r) * b.n + first) * result_bytes(epilogue.result), b.n);
    });
  }
}

int64_t float_group_workspace(const GroupSizes& b, int64_t m) {
  return lines((staged_rows(b.padded * 4, m) * b.padded + kFloatPad) * 4) + num_threads() * kThreadBytes;
}

}  // namespace lowbit
