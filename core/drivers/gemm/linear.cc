#include "drivers/gemm/linear.h"

#include <algorithm>
#include <vector>

#include "drivers/gemm/float_tiles.h"
#include "kernels/gemm_float/gemm_float.h"

namespace lowbit {
namespace {

Granularity rows_of(int64_t m, int64_t k) { return {GranularityKind::group, m, k, 1, std::max<int64_t>(1, k)}; }

// Quantizes as many rows as fit the staging size, then calls multiply(first row, rows, codes, scales, zero points).
template <class Multiply>
DynamicResult in_stages(const Activations& a, int64_t k, const Multiply& multiply) {
  const int64_t at_once = staged_rows(k, a.m);
  const Aligned<uint8_t> codes = aligned<uint8_t>(at_once * k);
  const Aligned<float> scale = aligned<float>(at_once);
  const Aligned<int32_t> zero = aligned<int32_t>(at_once);
  const Aligned<char> range = aligned<char>(dynamic_workspace(rows_of(at_once, k), a.in));
  DynamicResult result;
  for (int64_t first = 0; first < a.m; first += at_once) {
    const int64_t rows = std::min(at_once, a.m - first);
    const void* x = static_cast<const char*>(a.x) + first * k * element_bytes(a.in);
    if (a.fixed) {
      const Affine affine{a.code, &a.scale, &a.zero, a.qmin, a.qmax};
      quantize(Granularity{GranularityKind::tensor, 1, 1, rows * k, 1}, affine, x, a.in, codes.get());
      multiply(first, rows, codes.get(), &a.scale, &a.zero);
      continue;
    }
    const bool symmetric = a.code == Code::s8;
    DynamicArgs d{a.code, 0, 255, 0, scale.get(), zero.get()};
    if (symmetric) d.qmin = -127, d.qmax = d.divisor = 127, d.zero = nullptr;
    if (k > 0) {
      result = quantize_from_data(rows_of(rows, k), d, x, a.in, codes.get(), range.get());
    } else {
      std::fill_n(scale.get(), rows, 1.0f);
    }
    if (result.nan != 0 || result.bad_scale != 0) return result;
    if (symmetric) std::fill_n(zero.get(), rows, 0);
    multiply(first, rows, codes.get(), scale.get(), zero.get());
  }
  return result;
}

// With weights alone quantized.
constexpr int64_t kBlockK = 4096;
constexpr int64_t kTaskColumns = 16;

constexpr int64_t kExpandedFloats = kTaskColumns * kBlockK;

int64_t padded(int64_t k) { return round_up(k, kFloatPad); }

int64_t rows_at_once(int64_t m, int64_t k) {
  const int64_t fit = staged_rows(padded(k) * 4, m);
  return fit > kFloatTaskRows && fit < m ? fit / kFloatTaskRows * kFloatTaskRows : fit;
}

constexpr int64_t kThreadBytes =
    lines(kExpandedFloats * 4) + lines(kFloatTaskRows * kTaskColumns * 8) + lines(kTaskColumns * 4);

// Elements [begin, end) of row r, whose scales begin at `first`, as f32.
void expand(const WeightOnly& w, const Granularity& row, int64_t r, int64_t first, int64_t begin, int64_t end,
            float* to) {
  const char* codes = static_cast<const char*>(w.codes) + r * w.row_bytes();
  if (w.table) {
    log_dequantize_part(row, *w.table, w.code, w.scale + first, codes, begin, end, to, Element::f32);
  } else {
    const Affine affine{w.code, w.scale + first, w.zero == nullptr ? nullptr : w.zero + first, 0, 0};
    dequantize_part(row, affine, codes, begin, end, to, Element::f32);
  }
}

// Prefetches their codes.
void prefetch(const WeightOnly& w, int64_t r, int64_t begin, int64_t end) {
  const char* codes = static_cast<const char*>(w.codes) + r * w.row_bytes();
  for (int64_t b = packed_bytes(w.code, begin); b < packed_bytes(w.code, end); b += kCacheLine)
    __builtin_prefetch(codes + b);
}

}  // namespace

DynamicResult linear(const Activations& a, const PackedMatrix& b, const Epilogue& epilogue, void* out) {
  return in_stages(a, b.k,
                   [&](int64_t first, int64_t count, const uint8_t* codes, const float* scale, const int32_t* zero) {
                     CodeRows rows{};
                     rows.rows = count, rows.is_signed = a.code == Code::s8, rows.codes = codes, rows.stride = b.k;
                     rows.zero = zero, rows.zero_per_row = !a.fixed && a.code == Code::u8;
                     Epilogue f = epilogue;
                     f.row_scale = scale, f.scale_per_row = !a.fixed;
                     gemm(rows, b, f, static_cast<char*>(out) + first * b.n * result_bytes(f.result), b.n);
                   });
}

DynamicResult linear(const Activations& a, const PackedGroups& b, const Epilogue& epilogue, void* out) {
  const std::vector<float> repeated(a.fixed ? staged_rows(b.k, a.m) : 0, a.scale);
  return in_stages(a, b.k, [&](int64_t first, int64_t count, const uint8_t* codes, const float* scale, const int32_t*) {
    group_matmul(reinterpret_cast<const int8_t*>(codes), count, a.fixed ? repeated.data() : scale, false, b, epilogue,
                 static_cast<char*>(out) + first * b.n * result_bytes(epilogue.result));
  });
}

int64_t linear_workspace(int64_t m, int64_t k) {
  const int64_t at_once = staged_rows(k, m);
  return lines(at_once * k) + 3 * lines(at_once * 4) + lines(dynamic_workspace(rows_of(at_once, k), Element::f32));
}

void float_matmul(const FloatInput& input, const WeightOnly& weights, const Epilogue& output, void* out) {
  const int64_t n = weights.n, all_k = weights.k, row_scales = weights.row_scales();
  if (input.m == 0 || n == 0) return;
  const Granularity row = weights.row();
  const Isa isa = active_isa();
  const GemmFloatRow& kernel = gemm_float_row(isa, input.in);
  const EpilogueRow& epilogue = epilogue_row(isa, output.result);
  const int64_t at_once = rows_at_once(input.m, all_k), k_blocks = ceil_div(all_k, kBlockK);
  const Aligned<float> widened = aligned<float>(at_once * padded(all_k));
  // k-block p of row r. The rows of a task lie together, k-block by k-block.
  const auto place = [&](int64_t r, int64_t p, int64_t count) {
    const int64_t first = r / kFloatTaskRows * kFloatTaskRows, together = std::min(kFloatTaskRows, count - first);
    const int64_t depth = padded(std::min(kBlockK, all_k - p * kBlockK));
    return widened.get() + first * padded(all_k) + together * p * kBlockK + (r - first) * depth;
  };
  for (int64_t base = 0; base < input.m; base += at_once) {
    const int64_t count = std::min(at_once, input.m - base);
    parallel_for(count, [&](int64_t r) {
      for (int64_t p = 0; p < k_blocks; ++p) {
        const char* x =
            static_cast<const char*>(input.x) + ((base + r) * all_k + p * kBlockK) * element_bytes(input.in);
        kernel.widen(x, std::min(kBlockK, all_k - p * kBlockK), place(r, p, count));
      }
    });
    for_each_tile(count, n, kTaskColumns, [&](int64_t r, int64_t rows, int64_t column, int64_t columns) {
      // Columns that are dequantized at once, for one k-block. With many rows of x: those of a task, which all rows
      // read from L2. With few rows dequantizing dominates: those of a tile, which stay in L1.
      const int64_t at_a_time = rows > 8 ? kTaskColumns : kFloatCols;
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
          const int64_t k = p * kBlockK, depth = std::min(kBlockK, all_k - k);
          for (int64_t j = 0; j < wide; ++j) {
            if (c + j + at_a_time < columns) prefetch(weights, column + c + j + at_a_time, k, k + depth);
            expand(weights, row, column + c + j, (column + c + j) * row_scales, k, k + depth, w + j * kBlockK);
            std::fill(w + j * kBlockK + depth, w + j * kBlockK + padded(depth), 0.0f);
          }
          for (int64_t j = wide; j < a.columns; ++j) std::fill_n(w + j * kBlockK, padded(depth), 0.0f);
          a.k = a.x_stride = padded(depth), a.x = place(r, p, count);
          kernel.run(a);
        }
      }
      narrow_totals(epilogue, output, totals, kTaskColumns, nullptr, rows, columns, sums,
                    static_cast<char*>(out) + ((base + r) * n + column) * result_bytes(output.result), n);
    });
  }
}

int64_t weight_only_workspace(int64_t m, int64_t k) {
  return lines(rows_at_once(m, k) * padded(k) * 4) + num_threads() * kThreadBytes;
}

}  // namespace lowbit
