// The epilogue of a matrix product: zero points, scales, bias, clamp, requantize, as kernels/epilogue has them.
#include <algorithm>
#include <cmath>

#include "drivers/gemm/gemm_call.h"
#include "simd/vec.h"

namespace lowbit {

void column_scales(const Epilogue& e, int64_t n, float* to) {
  e.scale_per_column ? std::copy_n(e.scale, n, to) : std::fill_n(to, n, e.scale[0]);
  if (e.scale_per_row) return;
  const float row = e.row_scale == nullptr ? 1.0f : e.row_scale[0];
  const float step = e.result >= Result::s8 ? e.out_scale : 1.0f;
  for (int64_t i = 0; i < n; ++i) to[i] = row * to[i] / step;
}

void GemmCall::prepare_columns() {
  const int64_t padding = b.panels * kGemmCols - b.n;
  if (epilogue.bias != nullptr) {
    bias = aligned<float>(b.n + padding);
    std::fill_n(std::copy_n(epilogue.bias, b.n, bias.get()), padding, 0.0f);
  }
  if (epilogue.result == Result::s32) return;
  scale = aligned<float>(b.n + padding);
  column_scales(epilogue, b.n, scale.get());
  std::fill_n(scale.get() + b.n, padding, 0.0f);
}

void GemmCall::apply_epilogue(const GemmScratch& s, const GemmArgs& x, int64_t row, int64_t done, int64_t panel,
                              int64_t panels) const {
  const int64_t first = panel * kGemmCols, stride = schedule.problem.out_stride;
  EpilogueArgs f{};
  f.acc = x.c, f.acc_stride = x.c_stride, f.rows = x.rows, f.n = std::min(panels * kGemmCols, b.n - first);
  if (a.zero_per_row) f.by_a = b.column_sum.data() + first, f.row_a = s.row_zero + done;
  if (b.has_zero) f.by_b = b.zero.data() + first, f.row_b = s.row_sum + done;
  f.out_scale = 1;
  if (epilogue.result != Result::s32) {
    f.scale = scale.get() + first;
    f.bias = bias ? bias.get() + first : nullptr;
    if (epilogue.scale_per_row) f.row_scale = epilogue.row_scale + row, f.out_scale = epilogue.out_scale;
    f.floor = epilogue.floor, f.ceiling = epilogue.ceiling;
    f.zero = epilogue.zero, f.lo = epilogue.lo, f.hi = epilogue.hi;
  }
  f.out = out + (row * stride + first) * result_bytes(epilogue.result), f.out_stride = stride;
  epilogue_kernel.run(f);
}

// One element at a time: so deep a k is rare.
void GemmCall::apply_epilogue_int64(const int64_t* total, int64_t row_sum, int64_t row, int64_t panel,
                                    int64_t panels) const {
  const int64_t first = panel * kGemmCols, n = std::min(panels * kGemmCols, b.n - first);
  const int64_t zero = a.zero[a.zero_per_row ? row : 0] + a_shift;
  const Epilogue& e = epilogue;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t column = first + i, at = row * schedule.problem.out_stride + column;
    int64_t t = total[i] - zero * b.column_sum[column] - static_cast<int64_t>(b.zero[column]) * row_sum;
    if (e.add != nullptr) t += e.add[column];
    if (e.result == Result::s32) {
      reinterpret_cast<int64_t*>(out)[at] = t;
      continue;
    }
    const float sum = static_cast<float>(t);
    const float row_scale = e.row_scale == nullptr ? 1.0f : e.row_scale[e.scale_per_row ? row : 0];
    const float by = row_scale * e.scale[e.scale_per_column ? column : 0];
    if (e.result >= Result::s8) {
      const float low = static_cast<float>(e.lo - e.zero), high = static_cast<float>(e.hi - e.zero);
      const float steps = std::clamp(std::nearbyintf(sum * (by / e.out_scale)), low, high);
      reinterpret_cast<uint8_t*>(out)[at] = static_cast<uint8_t>(static_cast<int32_t>(steps) + e.zero);
      continue;
    }
    float y = sum * by;
    if (e.bias != nullptr) y += e.bias[column];
    y = std::clamp(y, e.floor, e.ceiling);
    if (e.result == Result::f32) narrow(reinterpret_cast<float*>(out) + at, y);
    if (e.result == Result::f16) narrow(reinterpret_cast<half_t*>(out) + at, y);
    if (e.result == Result::bf16) narrow(reinterpret_cast<bfloat_t*>(out) + at, y);
  }
}

}  // namespace lowbit
