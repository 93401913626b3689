#include "drivers/gemm/packed_matrix.h"

#include <algorithm>
#include <cstring>

#include "base/threads.h"

namespace lowbit {
namespace {

// Raises PackedMatrix::bound to hold for a panel's quad at an even index and the next one.
void raise_bounds(int32_t (&bound)[kGemmFits], const int8_t* quad) {
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
  struct Bounds {
    int32_t of[kGemmFits] = {};
  };
  std::vector<Bounds> bounds(static_cast<size_t>(panels));
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
    for (int64_t q = 0; q < quads; q += 2) raise_bounds(bounds[panel].of, codes.get() + quad_at(panel, q));
  });
  for (const int32_t z : zero) has_zero |= z != 0;
  for (const Bounds& found : bounds)
    for (int i = 0; i < kGemmFits; ++i) bound[i] = std::max(bound[i], found.of[i]);
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

int64_t PackedMatrix::nbytes() const { return packed_matrix_bytes(k, n); }

int64_t packed_matrix_bytes(int64_t k, int64_t n) {
  return round_up(n, kGemmCols) * (PackedMatrix::quads_of(k) * 4 + 2 * static_cast<int64_t>(sizeof(int32_t)));
}

}  // namespace lowbit
