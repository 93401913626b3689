// Weights of 4 or 2 bits in groups by s8 codes, as kernels/gemm_groupwise says, then y * row scale + bias.
#pragma once
#include <algorithm>

#include "base/memory.h"
#include "base/types.h"
#include "drivers/gemm/gemm.h"
#include "kernels/gemm_groupwise/gemm_groupwise.h"

namespace lowbit {

struct GroupSizes {
  int64_t k, n, block;
  int bits;
  int64_t groups, steps, last_steps;
  int64_t columns;  // of b: n padded to whole vectors
  int64_t padded;   // codes of a row of a, its groups padded to whole steps

  GroupSizes(int64_t k, int64_t n, int bits, int64_t block);
  // Bytes of b, or of some of its columns: codes, scales and zero points.
  int64_t packed_bytes(bool zeros) const { return bytes_of(columns, zeros); }
  int64_t bytes_of(int64_t some, bool zeros) const { return some * (padded * bits / 8 + groups * (zeros ? 5 : 4)); }
  // Columns of the block that begins at `first`.
  int64_t block_columns(int64_t first) const { return std::min<int64_t>(kGroupCols, columns - first); }
  // Whether rows of codes can be read in place.
  bool is_plain() const { return padded == k; }
};

// b, packed once.
struct PackedGroups : GroupSizes {
  Aligned<uint8_t> data;  // as kernels/gemm_groupwise/gemm_groupwise.h says
  bool has_zeros;
  int32_t zero_all;

  // codes: [n][k], one byte each, 0 to 2^bits - 1. scale and zero: [n][groups]; zero null: zero_all.
  PackedGroups(const uint8_t* codes, int64_t k, int64_t n, int bits, int64_t block, const float* scale,
               const uint8_t* zero, int32_t zero_all);
  int64_t nbytes() const { return packed_bytes(has_zeros); }
  const uint8_t* block_at(int64_t first) const { return data.get() + bytes_of(first, has_zeros); }
  void unpack(uint8_t* to) const;  // the codes given, [n][k]

 private:
  struct Place {
    int64_t byte;  // of data
    int shift;
  };
  Place place_of(int64_t column, int64_t i) const;
  // Of a step of a group in the block at column `first`. After the last step of a group come its scales, then zeros.
  int64_t offset(int64_t first, int64_t group, int64_t step) const;
};

struct FloatInput {
  const void* x;  // [m][k]
  Element in;     // f32, f16 or bf16
  int64_t m;
};

// a: [m][k] codes; a_scale: [m], or [m][groups]. Of the epilogue, which is one of floats, bias and clamp apply, here
// and below. out: [m][n], contiguous.
void group_matmul(const int8_t* a, int64_t m, const float* a_scale, bool scale_per_group, const PackedGroups& b,
                  const Epilogue& epilogue, void* out);
int64_t group_matmul_workspace(const GroupSizes& b, int64_t m);  // bytes, for any number of threads

// y[m][n] = clamp(bias[n] + sum over k of x[m][k] * w[n][k], floor, ceiling), as kernels/gemm_float_groupwise says. The
// bias is added in f64, and the sum narrowed once. The result depends neither on the number of threads nor on m.
void float_matmul(const FloatInput& input, const PackedGroups& b, const Epilogue& epilogue, void* out);
int64_t float_group_workspace(const GroupSizes& b, int64_t m);

}  // namespace lowbit
