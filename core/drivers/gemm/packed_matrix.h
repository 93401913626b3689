// The right side of a product of codes, arranged as kernels/gemm reads it.
#pragma once
#include <vector>

#include "base/memory.h"
#include "kernels/gemm/gemm.h"

namespace lowbit {

constexpr int64_t kUsualQuads = 192;  // of a piece of k, about
constexpr int64_t kRoomy = 1 << 20;   // bytes of a second cache in which pieces of the usual depth fit, widened

struct PackedMatrix {
  int64_t k = 0, n = 0, quads = 0, blocks = 0;
  int64_t piece = 0;            // quads of a piece; the last may be shorter
  Aligned<int8_t> codes;        // as kernels/gemm/gemm.h says
  std::vector<int32_t> zero;    // [n, padded] zero points of what is packed
  std::vector<int32_t> column;  // [n, padded] sum over k of (packed code - zero)
  bool has_zero = false;        // whether any zero point is not 0
  // No codes that one instruction adds in 16 bits sum to more, positive or negative parts alone, in the kernel of
  // gemm_rows of this index: none, two, or four of them.
  int32_t bound[kGemmRows] = {};

  // The fastest of gemm_rows that serves it with codes of a, as u8, of at most `most`.
  int kernel(int32_t most) const { return most * bound[2] <= 32767 ? 2 : most * bound[1] <= 32767 ? 1 : 0; }

  // b is [k][n] with these strides in elements; zero null: none, else `zeros` (1 or n) of them.
  PackedMatrix(const uint8_t* b, bool is_signed, int64_t k, int64_t n, int64_t stride_k, int64_t stride_n,
               const int32_t* zero, int64_t zeros);
  int64_t nbytes() const;
  void unpack(uint8_t* to) const;  // [n][k], as it was given

 private:
  // Where quad q of a block is.
  int64_t quad_at(int64_t block, int64_t q) const;
  uint8_t flip_;
};

// Bytes of one of this size.
int64_t packed_matrix_bytes(int64_t k, int64_t n);

}  // namespace lowbit
