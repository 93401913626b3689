// What becomes of exact sums of products, acc[m][n]:
//
//   t = acc[m][n] - row_a[m] * by_a[n] - row_b[m] * by_b[n]                        zero points, in int32
//   y = clamp(f32(t) * (row_scale[m] * scale[n]) + bias[n], floor, ceiling)        to f32, f16, bf16
//   q = clamp(rne(f32(t) * ((row_scale[m] * scale[n]) / out_scale)) + zero, lo, hi)   to s8, u8
//
// Every float operation is rounded by itself.
#pragma once
#include "base/arch.h"
#include "base/types.h"

namespace lowbit {

enum class Result : int { s32 = 0, f32 = 1, f16 = 2, bf16 = 3, s8 = 4, u8 = 5 };
constexpr int kResultBytes[] = {4, 4, 2, 2, 1, 1};
static inline int result_bytes(Result r) { return kResultBytes[static_cast<int>(r)]; }

constexpr int kFinishPad = 16;  // what is read for each column is readable up to a multiple of this

struct FinishArgs {
  const void* acc;  // int32; f32 for `floats`
  int64_t acc_stride;
  int64_t rows, n;
  const int32_t *by_a, *by_b;    // null: none; likewise bias, and row_scale for 1
  const int32_t *row_a, *row_b;  // read where by_a and by_b are there
  const float *row_scale, *scale, *bias;
  float floor, ceiling;
  float out_scale;
  int32_t zero, lo, hi;
  void* out;
  int64_t out_stride;
};

struct FinishRow {
  Result out;
  void (*run)(const FinishArgs&);
  // Sums that are floats already: y = clamp(acc * row_scale[m] + bias[n], floor, ceiling). f32, f16 and bf16 only.
  void (*floats)(const FinishArgs&);
};

constexpr int kFinishRows = 6;
const FinishRow* finish_rows(Isa isa);
const FinishRow& finish_row(Isa isa, Result out);

}  // namespace lowbit
