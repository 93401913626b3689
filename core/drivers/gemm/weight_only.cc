#include "drivers/gemm/weight_only.h"

#include <algorithm>
#include <utility>

#include "base/fp_environment.h"
#include "base/memory.h"
#include "base/threads.h"
#include "drivers/elementwise/elementwise.h"
#include "kernels/gemm_float/gemm_float.h"

namespace lowbit {
namespace {

constexpr int64_t kPieceK = WeightOnly::kPieceK;
constexpr int64_t kTaskRows = 32, kTaskColumns = 16;
constexpr int64_t kWidenedBytes = 4 << 20;  // of x, widened, at a time

// Columns that are expanded at once, a piece deep. With many rows of x: all of a task, to meet every row while in L2.
// With few, expanding is the cost: a tile, so that it stays in L1.
int64_t expanded_columns(int64_t rows) { return rows > 8 ? kTaskColumns : kFloatCols; }
constexpr int64_t kStripFloats = kTaskColumns * kPieceK;

int64_t padded(int64_t k) { return round_up(k, kFloatPad); }

int64_t rows_at_once(int64_t m, int64_t k) {
  const int64_t fit = kWidenedBytes / std::max<int64_t>(4, padded(k) * 4);
  return std::clamp<int64_t>(fit > kTaskRows ? fit / kTaskRows * kTaskRows : fit, 1, std::max<int64_t>(1, m));
}

constexpr int64_t kThreadBytes =
    lines(kStripFloats * 4) + lines(kTaskRows * kTaskColumns * 8) + lines(kTaskColumns * 4);

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
      scales_a_row_(kind == GranularityKind::tensor ? 0 : row_.scales()),
      scale_(scale),
      zero_(zero),
      table_(std::move(table)) {}

void WeightOnly::expand(int64_t r, int64_t begin, int64_t end, float* to) const {
  const char* codes = codes_ + r * row_bytes();
  const float* scale = scale_ + r * scales_a_row_;
  if (table_) {
    log_dequantize_part(row_, *table_, code_, scale, codes, begin, end, to, Element::f32);
  } else {
    const Affine affine{code_, scale, zero_ == nullptr ? nullptr : zero_ + r * scales_a_row_, 0, 0};
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
  const int64_t at_once = rows_at_once(input.m, k_), pieces = (k_ + kPieceK - 1) / kPieceK;
  const Aligned<float> widened = aligned<float>(at_once * padded(k_));
  // Piece p of row r: rows that meet in a task lie side by side, piece by piece.
  const auto place = [&](int64_t r, int64_t p, int64_t count) {
    const int64_t first = r / kTaskRows * kTaskRows, together = std::min(kTaskRows, count - first);
    const int64_t depth = padded(std::min(kPieceK, k_ - p * kPieceK));
    return widened.get() + first * padded(k_) + together * p * kPieceK + (r - first) * depth;
  };
  for (int64_t base = 0; base < input.m; base += at_once) {
    const int64_t count = std::min(at_once, input.m - base);
    parallel_for(count, [&](int64_t r) {
      const FpEnvironment environment;
      for (int64_t p = 0; p < pieces; ++p) {
        const char* x = static_cast<const char*>(input.x) + ((base + r) * k_ + p * kPieceK) * element_bytes(input.in);
        kernel.widen(x, std::min(kPieceK, k_ - p * kPieceK), place(r, p, count));
      }
    });
    const int64_t row_tasks = (count + kTaskRows - 1) / kTaskRows,
                  column_tasks = (n_ + kTaskColumns - 1) / kTaskColumns;
    parallel_for(row_tasks * column_tasks, [&](int64_t i) {
      const FpEnvironment environment;
      // Tasks that share weights follow one another.
      const int64_t r = i % row_tasks * kTaskRows, column = i / row_tasks * kTaskColumns;
      const int64_t rows = std::min(kTaskRows, count - r), columns = std::min(kTaskColumns, n_ - column);
      const int64_t at_a_time = expanded_columns(rows);
      Cutter scratch(thread_block(kThreadBytes));
      float* w = scratch.take<float>(kStripFloats);
      double* totals = scratch.take<double>(kTaskRows * kTaskColumns);
      float* sums = scratch.take<float>(kTaskColumns);
      for (int64_t j = 0; j < rows * kTaskColumns; ++j) {
        const int64_t c = j % kTaskColumns;
        totals[j] = output.bias != nullptr && c < columns ? static_cast<double>(output.bias[column + c]) : 0.0;
      }
      GemmFloatArgs a{};
      a.rows = rows, a.w_stride = kPieceK, a.total_stride = kTaskColumns;
      for (int64_t c = 0; c < columns; c += at_a_time) {
        const int64_t wide = std::min(at_a_time, columns - c);
        a.columns = round_up(wide, kFloatCols), a.w = w, a.totals = totals + c;
        for (int64_t p = 0; p < pieces; ++p) {
          const int64_t k = p * kPieceK, depth = std::min(kPieceK, k_ - k);
          for (int64_t j = 0; j < wide; ++j) {
            if (c + j + at_a_time < columns) prefetch(column + c + j + at_a_time, k, k + depth);
            expand(column + c + j, k, k + depth, w + j * kPieceK);
            std::fill(w + j * kPieceK + depth, w + j * kPieceK + padded(depth), 0.0f);
          }
          for (int64_t j = wide; j < a.columns; ++j) std::fill_n(w + j * kPieceK, padded(depth), 0.0f);
          a.k = a.x_stride = padded(depth), a.x = place(r, p, count);
          kernel.run(a);
        }
      }
      EpilogueArgs f{};
      f.acc = sums, f.rows = 1, f.n = columns, f.floor = output.floor, f.ceiling = output.ceiling;
      for (int64_t j = 0; j < rows; ++j) {
        for (int64_t c = 0; c < kTaskColumns; ++c) sums[c] = static_cast<float>(totals[j * kTaskColumns + c]);
        f.out = static_cast<char*>(out) + ((base + r + j) * n_ + column) * result_bytes(output.result);
        epilogue.floats(f);
      }
    });
  }
}

int64_t WeightOnly::workspace(int64_t m, int64_t k) {
  return lines(rows_at_once(m, k) * padded(k) * 4) + num_threads() * kThreadBytes;
}

}  // namespace lowbit
