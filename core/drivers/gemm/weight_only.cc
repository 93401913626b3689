#include "drivers/gemm/weight_only.h"

#include <algorithm>
#include <utility>

#include "drivers/elementwise/elementwise.h"
#include "drivers/gemm/float_tiles.h"
#include "kernels/gemm_float/gemm_float.h"

namespace lowbit {
namespace {

constexpr int64_t kBlockK = WeightOnly::kBlockK;
constexpr int64_t kTaskColumns = 16;

// Columns that are dequantized at once, for one k-block. With many rows of x: those of a task, which all rows read from
// L2. With few rows dequantizing dominates: those of a tile, which stay in L1.
int64_t expanded_columns(int64_t rows) { return rows > 8 ? kTaskColumns : kFloatCols; }
constexpr int64_t kExpandedFloats = kTaskColumns * kBlockK;

int64_t padded(int64_t k) { return round_up(k, kFloatPad); }

int64_t rows_at_once(int64_t m, int64_t k) {
  const int64_t fit = staged_rows(padded(k) * 4, m);
  return fit > kFloatTaskRows && fit < m ? fit / kFloatTaskRows * kFloatTaskRows : fit;
}

constexpr int64_t kThreadBytes =
    lines(kExpandedFloats * 4) + lines(kFloatTaskRows * kTaskColumns * 8) + lines(kTaskColumns * 4);

}  // namespace

WeightOnly::WeightOnly(Code code, const void* codes, int64_t n, int64_t k, GranularityKind kind, int64_t block,
                       const float* scale, const int32_t* zero, std::unique_ptr<const LogTable<float>> table)
    : code_(code),
      codes_(static_cast<const char*>(codes)),
      n_(n),
      k_(k),
      kind_(kind),
      row_(kind == GranularityKind::group ? Granularity{GranularityKind::group, 1, k, 1, block}
                                          : Granularity{GranularityKind::tensor, 1, 1, k, 1}),
      row_scales_(kind == GranularityKind::tensor ? 0 : row_.scales()),
      scale_(scale),
      zero_(zero),
      table_(std::move(table)) {}

void WeightOnly::expand(int64_t r, int64_t begin, int64_t end, float* to) const {
  const char* codes = codes_ + r * row_bytes();
  const float* scale = scale_ + r * row_scales_;
  if (table_) {
    log_dequantize_part(row_, *table_, code_, scale, codes, begin, end, to, Element::f32);
  } else {
    const Affine affine{code_, scale, zero_ == nullptr ? nullptr : zero_ + r * row_scales_, 0, 0};
    dequantize_part(row_, affine, codes, begin, end, to, Element::f32);
  }
}

void WeightOnly::prefetch(int64_t r, int64_t begin, int64_t end) const {
  const char* codes = codes_ + r * row_bytes();
  for (int64_t b = packed_bytes(code_, begin); b < packed_bytes(code_, end); b += kCacheLine)
    __builtin_prefetch(codes + b);
}

void WeightOnly::run(const FloatInput& input, const FloatEpilogue& output, void* out) const {
  if (input.m == 0 || n_ == 0) return;
  const Isa isa = active_isa();
  const GemmFloatRow& kernel = gemm_float_row(isa, input.in);
  const EpilogueRow& epilogue = epilogue_row(isa, output.result);
  const int64_t at_once = rows_at_once(input.m, k_), k_blocks = ceil_div(k_, kBlockK);
  const Aligned<float> widened = aligned<float>(at_once * padded(k_));
  // k-block p of row r. The rows of a task lie together, k-block by k-block.
  const auto place = [&](int64_t r, int64_t p, int64_t count) {
    const int64_t first = r / kFloatTaskRows * kFloatTaskRows, together = std::min(kFloatTaskRows, count - first);
    const int64_t depth = padded(std::min(kBlockK, k_ - p * kBlockK));
    return widened.get() + first * padded(k_) + together * p * kBlockK + (r - first) * depth;
  };
  for (int64_t base = 0; base < input.m; base += at_once) {
    const int64_t count = std::min(at_once, input.m - base);
    parallel_for(count, [&](int64_t r) {
      const FpEnvironment environment;
      for (int64_t p = 0; p < k_blocks; ++p) {
        const char* x = static_cast<const char*>(input.x) + ((base + r) * k_ + p * kBlockK) * element_bytes(input.in);
        kernel.widen(x, std::min(kBlockK, k_ - p * kBlockK), place(r, p, count));
      }
    });
    for_each_tile(count, n_, kTaskColumns, [&](int64_t r, int64_t rows, int64_t column, int64_t columns) {
      const int64_t at_a_time = expanded_columns(rows);
      Cutter scratch(thread_block(kThreadBytes));
      float* w = scratch.take<float>(kExpandedFloats);
      double* totals = scratch.take<double>(kFloatTaskRows * kTaskColumns);
      float* sums = scratch.take<float>(kTaskColumns);
      for (int64_t j = 0; j < rows * kTaskColumns; ++j) {
        const int64_t c = j % kTaskColumns;
        totals[j] = output.bias != nullptr && c < columns ? static_cast<double>(output.bias[column + c]) : 0.0;
      }
      GemmFloatArgs a{};
      a.rows = rows, a.w_stride = kBlockK, a.total_stride = kTaskColumns;
      for (int64_t c = 0; c < columns; c += at_a_time) {
        const int64_t wide = std::min(at_a_time, columns - c);
        a.columns = round_up(wide, kFloatCols), a.w = w, a.totals = totals + c;
        for (int64_t p = 0; p < k_blocks; ++p) {
          const int64_t k = p * kBlockK, depth = std::min(kBlockK, k_ - k);
          for (int64_t j = 0; j < wide; ++j) {
            if (c + j + at_a_time < columns) prefetch(column + c + j + at_a_time, k, k + depth);
            expand(column + c + j, k, k + depth, w + j * kBlockK);
            std::fill(w + j * kBlockK + depth, w + j * kBlockK + padded(depth), 0.0f);
          }
          for (int64_t j = wide; j < a.columns; ++j) std::fill_n(w + j * kBlockK, padded(depth), 0.0f);
          a.k = a.x_stride = padded(depth), a.x = place(r, p, count);
          kernel.run(a);
        }
      }
      narrow_totals(epilogue, output, totals, kTaskColumns, nullptr, rows, columns, sums,
                    static_cast<char*>(out) + ((base + r) * n_ + column) * result_bytes(output.result), n_);
    });
  }
}

int64_t WeightOnly::workspace(int64_t m, int64_t k) {
  return lines(rows_at_once(m, k) * padded(k) * 4) + num_threads() * kThreadBytes;
}

}  // namespace lowbit
