// Epilogue of a GEMM or convolution with int32 accumulators acc[m][n]:
//
//   t = acc[m][n] - row_a[m] * by_a[n] - row_b[m] * by_b[n]                        zero points, in int32
//   y = clamp(f32(t) * (row_scale[m] * scale[n]) + bias[n], floor, ceiling)        to f32, f16, bf16
//   q = clamp(rne(f32(t) * ((row_scale[m] * scale[n]) / out_scale)) + zero, lo, hi)   to s8, u8
//
// Every float operation is rounded on its own.
#pragma once
#include "base/types.h"
#include "kernels/families.h"

namespace lowbit {

enum class Result : int { s32 = 0, f32 = 1, f16 = 2, bf16 = 3, s8 = 4, u8 = 5 };
constexpr int kResultBytes[] = {4, 4, 2, 2, 1, 1};
static inline int result_bytes(Result r) { return kResultBytes[static_cast<int>(r)]; }

constexpr int kEpiloguePad = 16;  // arrays with one value per column are readable up to a multiple of this

struct EpilogueArgs {
  const void* acc;  // int32; f32 for `floats`
  int64_t acc_stride;
  int64_t rows, n;
  const int32_t *by_a, *by_b;    // null: none; as for bias, and row_scale (then 1)
  const int32_t *row_a, *row_b;  // used with by_a and by_b
  const float *row_scale, *scale, *bias;
  float floor, ceiling;
  float out_scale;
  int32_t zero, lo, hi;
  void* out;
  int64_t out_stride;
};

struct EpilogueRow {
  Result out;
  void (*run)(const EpilogueArgs&);
  // Float accumulators: y = clamp(acc * row_scale[m] + bias[n], floor, ceiling). f32, f16 and bf16 only.
  void (*floats)(const EpilogueArgs&);
};

const EpilogueRow& epilogue_row(Isa isa, Result out);

}  // namespace lowbit
