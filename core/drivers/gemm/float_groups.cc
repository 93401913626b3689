#include <algorithm>

#include "drivers/gemm/float_tiles.h"
#include "kernels/gemm_float/gemm_float.h"
#include "kernels/gemm_float_groupwise/gemm_float_groupwise.h"

namespace lowbit {
namespace {

constexpr int64_t kThreadBytes = lines(kFloatTaskRows * kGroupTaskColumns * 8) + lines(kGroupTaskColumns * 4);

}  // namespace

void float_group_matmul(const FloatInput& input, const PackedGroups& b, const FloatEpilogue& epilogue, void* out) {
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
