#include "drivers/gemm/float_groups.h"

#include <algorithm>

#include "base/fp_environment.h"
#include "base/threads.h"
#include "kernels/gemm_float/gemm_float.h"
#include "kernels/gemm_float_groupwise/gemm_float_groupwise.h"

namespace lowbit {
namespace {

constexpr int64_t kTaskRows = 32, kTaskColumns = 2 * kGroupCols;
constexpr int64_t kWidenedBytes = 4 << 20;  // of x, widened, at a time
constexpr int64_t kThreadBytes = lines(kTaskRows * kTaskColumns * 8) + lines(kTaskColumns * 4);

int64_t rows_at_once(const GroupSizes& b, int64_t m) {
  return std::clamp<int64_t>(kWidenedBytes / std::max<int64_t>(4, b.padded * 4), 1, std::max<int64_t>(1, m));
}

}  // namespace

void float_group_matmul(const FloatInput& input, const PackedGroups& b, const FloatEpilogue& epilogue, void* out) {
  if (input.m == 0 || b.n == 0) return;
  const Isa isa = active_isa();
  const FloatGroupwiseRow& kernel = gemm_float_groupwise_row(isa, b.bits);
  const EpilogueRow& narrow = epilogue_row(isa, epilogue.result);
  const auto widen = gemm_float_row(isa, input.in).widen;
  const bool is_ready = input.in == Element::f32 && b.is_plain();
  const int64_t step = 32 / b.bits, at_once = is_ready ? input.m : rows_at_once(b, input.m);
  // What is widened ends with zeros, beyond a group's own too: the next one is written after it, and the last has room.
  const Aligned<float> widened = aligned<float>(is_ready ? 0 : at_once * b.padded + kFloatPad);
  for (int64_t base = 0; base < input.m; base += at_once) {
    const int64_t count = std::min(at_once, input.m - base);
    const float* x = is_ready ? static_cast<const float*>(input.x) + base * b.k : widened.get();
    const int64_t row_tasks = (count + kTaskRows - 1) / kTaskRows;
    for (int64_t r = 0; r < (is_ready ? 0 : count); ++r) {
      const FpEnvironment environment;
      const char* from = static_cast<const char*>(input.x) + (base + r) * b.k * element_bytes(input.in);
      const int64_t length = b.is_plain() ? b.k : b.block, room = b.is_plain() ? b.k : b.steps * step;
      for (int64_t first = 0, at = r * b.padded; first < b.k; first += length, at += room)
        widen(from + first * element_bytes(input.in), std::min(length, b.k - first), widened.get() + at);
    }
    const int64_t column_tasks = (b.columns + kTaskColumns - 1) / kTaskColumns;
    parallel_for(row_tasks * column_tasks, [&](int64_t i) {
      const FpEnvironment environment;
      // Tasks that share columns of b follow one another.
      const int64_t r = i % row_tasks * kTaskRows, first = i / row_tasks * kTaskColumns;
      Cutter scratch(thread_block(kThreadBytes));
      double* const totals = scratch.take<double>(kTaskRows * kTaskColumns);
      float* const sums = scratch.take<float>(kTaskColumns);
      FloatGroupwiseArgs a{};
      a.rows = std::min(kTaskRows, count - r), a.x = x + r * b.padded, a.x_stride = b.padded;
      a.has_zeros = b.has_zeros, a.zero_all = b.zero_all;
      a.groups = b.groups, a.steps = b.steps, a.last_steps = b.last_steps, a.total_stride = kTaskColumns;
      const int64_t end = std::min(first + kTaskColumns, b.columns);
      for (int64_t column = first; column < end; column += kGroupCols) {
        a.columns = b.block_columns(column), a.b = b.block_at(column), a.totals = totals + column - first;
        kernel.run(a);
      }
      EpilogueArgs f{};
      f.acc = sums, f.rows = 1, f.n = std::min(end, b.n) - first, f.floor = epilogue.floor,
      f.ceiling = epilogue.ceiling;
      for (int64_t j = 0; j < a.rows; ++j) {
        const double* total = totals + j * kTaskColumns;
        for (int64_t c = 0; c < f.n; ++c)
          sums[c] =
              static_cast<float>(epilogue.bias == nullptr ? total[c] : total[c] + double{epilogue.bias[first + c]});
        f.out = static_cast<char*>(out) + ((base + r + j) * b.n + first) * result_bytes(epilogue.result);
        narrow.floats(f);
      }
    });
  }
}

int64_t float_group_workspace(const GroupSizes& b, int64_t m) {
  return lines((rows_at_once(b, m) * b.padded + kFloatPad) * 4) + num_threads() * kThreadBytes;
}

}  // namespace lowbit
