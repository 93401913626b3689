// What becomes of a row of exact sums of products:
//
//   t = acc + row_a * by_a[n] + row_b * by_b[n]                               zero points, in int32
//   y = clamp(f32(t) * (row_scale * scale[n]) + bias[n], floor, ceiling)      to f32, f16, bf16
//   q = clamp(rne(f32(t) * ((row_scale * scale[n]) / out_scale)) + zero, lo, hi)   to s8, u8
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
  int64_t n;
  const int32_t *by_a, *by_b;  // null: none; likewise bias
  int32_t row_a, row_b;
  float row_scale;
  const float *scale, *bias;
  float floor, ceiling;
  float out_scale;
  int32_t zero, lo, hi;
  void* out;
};

struct FinishRow {
  Result out;
  void (*run)(const FinishArgs&);
  // Sums that are floats already: y = clamp(acc * row_scale + bias[n], floor, ceiling). f32, f16 and bf16 only.
  void (*floats)(const FinishArgs&);
};

constexpr int kFinishRows = 6;
const FinishRow* finish_rows(Isa isa);
const FinishRow& finish_row(Isa isa, Result out);

}  // namespace lowbit
