// The right side of an integer matrix product, arranged as kernels/gemm reads it.
#pragma once
#include <vector>

#include "base/cpu_model.h"
#include "base/memory.h"
#include "kernels/gemm/gemm.h"

namespace lowbit {

struct PackedMatrix {
  int64_t k = 0, n = 0, quads = 0, panels = 0;
  int64_t k_block = 0;              // quads; the last k-block may be shorter
  Aligned<int8_t> codes;            // as kernels/gemm/gemm.h says
  std::vector<int32_t> zero;        // [n, padded] zero points of the packed codes
  std::vector<int32_t> column_sum;  // [n, padded] sum over k of (packed code - zero)
  bool has_zero = false;            // whether any zero point is not 0
  // The largest absolute sum of the codes that the micro-kernel of this index adds in 16 bits (none, two or four), of
  // positive or of negative ones alone.
  int32_t bound[kGemmFits] = {};

  // The index of the fastest micro-kernel of gemm_rows that is exact for u8 codes of a up to `most`.
  int kernel(int32_t most) const { return most * bound[2] <= 32767 ? 2 : most * bound[1] <= 32767 ? 1 : 0; }

  // b is [k][n] with these strides in elements; zero null: none, else `zeros` (1 or n) of them.
  PackedMatrix(const uint8_t* b, bool is_signed, int64_t k, int64_t n, int64_t stride_k, int64_t stride_n,
               const int32_t* zero, int64_t zeros);
  int64_t nbytes() const { return bytes_for(k, n); }
  static int64_t bytes_for(int64_t k, int64_t n);
  static int64_t quads_of(int64_t k);
  static int64_t k_block_of(int64_t quads, const CpuModel& cpu);
  void unpack(uint8_t* to) const;  // [n][k], as it was given

 private:
  int64_t quad_at(int64_t panel, int64_t q) const;  // the offset of quad q of a panel
  uint8_t flip_;
};

}  // namespace lowbit
