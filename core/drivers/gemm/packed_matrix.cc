#include "drivers/gemm/packed_matrix.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/threads.h"
#include "drivers/gemm/gemm.h"

namespace lowbit {
namespace {

// Raises PackedMatrix::bound to hold for a panel's quad at an even index and the next one.
void raise_bounds(std::array<int32_t, kGemmFits>& bound, const int8_t* quad) {
  constexpr int kBytes = kGemmCols * 4;
  for (int i = 0; i < kBytes; i += 2) {
    int32_t up[2], down[2];
    for (int odd = 0; odd < 2; ++odd) {
      const int32_t x = quad[odd * kBytes + i], y = quad[odd * kBytes + i + 1];
      up[odd] = std::max(x, 0) + std::max(y, 0), down[odd] = -std::min(x, 0) - std::min(y, 0);
    }
    bound[1] = std::max({bound[1], up[0], up[1], down[0], down[1]});
    bound[2] = std::max({bound[2], up[0] + up[1], down[0] + down[1]});
  }
}

// In vectors that every x86-64 and ARM CPU has, several at a time: it must take no time beside the product.
uint8_t largest_code(const uint8_t* codes, int64_t n) {
  typedef uint8_t Vector __attribute__((vector_size(16)));
  constexpr int64_t kVectors = 4, kStep = kVectors * static_cast<int64_t>(sizeof(Vector));
  Vector most[kVectors] = {};
  int64_t i = 0;
  for (; i + kStep <= n; i += kStep) {
    for (int64_t j = 0; j < kVectors; ++j) {
      Vector v;
      std::memcpy(&v, codes + i + j * static_cast<int64_t>(sizeof(v)), sizeof(v));
      most[j] = v > most[j] ? v : most[j];
    }
  }
  uint8_t found = 0;
  for (; i < n; ++i) found = std::max(found, codes[i]);
  for (const Vector& v : most)
    for (size_t k = 0; k < sizeof(v); ++k) found = std::max(found, v[k]);
  return found;
}

// Of all codes of a, by several threads where there are many. Gathered rows: of the array they come from.
uint8_t largest_code(const CodeRows& a, int64_t k) {
  constexpr int64_t kParts = 64, kLeast = 1 << 16;
  const bool is_run = a.codes == nullptr || a.stride == k;
  const uint8_t* from = a.codes == nullptr ? a.source : a.codes;
  const int64_t n = a.codes == nullptr ? a.source_bytes : a.rows * a.stride;
  const int64_t step = round_up(std::max(kLeast, ceil_div(n, kParts)), is_run ? 1 : a.stride);
  uint8_t most[kParts + 1] = {};
  parallel_for(ceil_div(n, step), [&](int64_t i) {
    const int64_t first = i * step, end = std::min(n, first + step);
    if (is_run) {
      most[i] = largest_code(from + first, end - first);
    } else {
      for (int64_t at = first; at < end; at += a.stride) most[i] = std::max(most[i], largest_code(from + at, k));
    }
  });
  if (a.codes == nullptr) most[kParts] = a.padding;
  return *std::max_element(most, most + kParts + 1);
}

}  // namespace

int64_t PackedMatrix::quads_of(int64_t k) { return round_up(ceil_div(k, 4), kGemmQuads); }

// About as many quads as the CPU model asks for, and all k-blocks alike: a short one costs nearly as much as a whole.
int64_t PackedMatrix::k_block_of(int64_t quads, const CpuModel& cpu) {
  const bool is_tight = gemm_rows(active_isa()).front().a == GemmOperand::s16 && cpu.l2 < cpu.wide_l2;
  const int64_t usual = is_tight ? cpu.k_block_small_l2 : cpu.k_block;
  const int64_t blocks = std::max<int64_t>(1, (quads + usual / 2) / usual);
  return std::max<int64_t>(kGemmQuads, round_up(ceil_div(quads, blocks), kGemmQuads));
}

PackedMatrix::PackedMatrix(const uint8_t* b, bool is_signed, int64_t depth, int64_t columns, int64_t stride_k,
                           int64_t stride_n, const int32_t* zeros_of_b, int64_t zeros)
    : k(depth),
      n(columns),
      quads(quads_of(depth)),
      panels(ceil_div(columns, kGemmCols)),
      k_block(k_block_of(quads, cpu_model())),
      codes(aligned<int8_t>(panels * kGemmCols * quads * 4)),
      zero(static_cast<size_t>(panels * kGemmCols), 0),
      column_sum(static_cast<size_t>(panels * kGemmCols), 0),
      flip_(is_signed ? 0 : 0x80) {
  std::vector<std::array<int32_t, kGemmFits>> bounds(static_cast<size_t>(panels));
  parallel_for(panels, [&](int64_t panel) {
    for (int64_t q = 0; q < quads; ++q) std::memset(codes.get() + quad_at(panel, q), 0, kGemmCols * 4);
    const int64_t first = panel * kGemmCols, count = std::min<int64_t>(kGemmCols, n - first);
    for (int64_t j = 0; j < count; ++j) {
      const uint8_t* from = b + (first + j) * stride_n;
      int32_t sum = 0;
      for (int64_t i = 0; i < k; ++i) {
        const int8_t code = static_cast<int8_t>(from[i * stride_k] ^ flip_);
        codes[quad_at(panel, i / 4) + j * 4 + i % 4] = code;
        sum += code;
      }
      const int32_t z = (zeros_of_b == nullptr ? 0 : zeros_of_b[zeros == 1 ? 0 : first + j]) - (is_signed ? 0 : 128);
      zero[first + j] = z;
      column_sum[first + j] = static_cast<int32_t>(sum - k * z);
    }
    for (int64_t q = 0; q < quads; q += 2) raise_bounds(bounds[panel], codes.get() + quad_at(panel, q));
  });
  for (const int32_t z : zero) has_zero |= z != 0;
  for (const auto& found : bounds)
    for (int i = 0; i < kGemmFits; ++i) bound[i] = std::max(bound[i], found[i]);
}

int64_t PackedMatrix::quad_at(int64_t panel, int64_t q) const {
  const int64_t first = q / k_block * k_block, length = std::min(k_block, quads - first);
  return (first * panels + panel * length + q - first) * kGemmCols * 4;
}

void PackedMatrix::unpack(uint8_t* to) const {
  for (int64_t j = 0; j < n; ++j)
    for (int64_t i = 0; i < k; ++i)
      to[j * k + i] = static_cast<uint8_t>(codes[quad_at(j / kGemmCols, i / 4) + j % kGemmCols * 4 + i % 4] ^ flip_);
}

int64_t PackedMatrix::bytes_for(int64_t k, int64_t n) {
  return round_up(n, kGemmCols) * (quads_of(k) * 4 + 2 * static_cast<int64_t>(sizeof(int32_t)));
}

const GemmRow& select_kernel(const CodeRows& a, const PackedMatrix& b) {
  const KernelTable<GemmRow> kernels = gemm_rows(active_isa());
  const GemmRow &any = kernels[b.kernel(255)], &small = kernels[b.kernel(127)];
  if (a.is_signed || any.run == small.run) return any;
  return kernels[b.kernel(largest_code(a, b.k))];
}

}  // namespace lowbit
