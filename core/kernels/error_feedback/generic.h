// The recursion once, for every vector width.
#pragma once
#include "kernels/error_feedback/error_feedback.h"
#include "simd/vec.h"

namespace lowbit {

// out[c, lanes] = sum over i < count of a[i, lanes] * b[i, c], for the first `columns` columns of b.
template <class V, int Columns>
LOWBIT_INLINE void feedback_columns(const float* a, const float* b, int64_t stride, int64_t count, float* out) {
  using F32 = typename V::F32;
  for (int64_t lane = 0; lane < kFeedbackLanes; lane += 2 * V::width) {
    F32 sum[Columns][2];
    for (int c = 0; c < Columns; ++c) sum[c][0] = sum[c][1] = V::set(0.0f);
    for (int64_t i = 0; i < count; ++i) {
      const F32 first = V::load(a + i * kFeedbackLanes + lane);
      const F32 second = V::load(a + i * kFeedbackLanes + lane + V::width);
      for (int c = 0; c < Columns; ++c) {
        const F32 factor = V::set(b[i * stride + c]);
        sum[c][0] = V::add(sum[c][0], V::mul(first, factor));
        sum[c][1] = V::add(sum[c][1], V::mul(second, factor));
      }
    }
    for (int c = 0; c < Columns; ++c) {
      V::store(out + c * kFeedbackLanes + lane, sum[c][0]);
      V::store(out + c * kFeedbackLanes + lane + V::width, sum[c][1]);
    }
  }
}

template <class V>
void feedback_sums(const float* a, const float* b, int64_t stride, int64_t count, int64_t columns, float* out) {
  constexpr int kColumns = V::width >= 16 ? 8 : 4;  // accumulators that fit the registers
  int64_t c = 0;
  for (; c + kColumns <= columns; c += kColumns)
    feedback_columns<V, kColumns>(a, b + c, stride, count, out + c * kFeedbackLanes);
  for (; c < columns; ++c) feedback_columns<V, 1>(a, b + c, stride, count, out + c * kFeedbackLanes);
}

template <class V, bool Rounded>
void feedback(const FeedbackArgs& k) {
  using F32 = typename V::F32;
  alignas(64) float sums[kFeedbackBlock * kFeedbackLanes];
  for (int64_t from = 0; from < k.inputs; from += kFeedbackBlock) {
    const int64_t to = from + kFeedbackBlock < k.inputs ? from + kFeedbackBlock : k.inputs;
    feedback_sums<V>(k.e, k.t + from, k.inputs, from, to - from, sums);
    for (int64_t j = from; j < to; ++j) {
      const int64_t scales = Rounded ? k.group[j] * kFeedbackLanes : 0;
      for (int64_t lane = 0; lane < kFeedbackLanes; lane += V::width) {
        const int64_t at = j * kFeedbackLanes + lane;
        F32 sum = V::load(sums + (j - from) * kFeedbackLanes + lane);
        for (int64_t i = from; i < j; ++i) {
          const F32 e = V::load(k.e + i * kFeedbackLanes + lane);
          sum = V::add(sum, V::mul(e, V::set(k.t[i * k.inputs + j])));
        }
        const F32 w = V::load(k.w + at), v = V::add(w, sum);
        if constexpr (Rounded) {
          const F32 s = V::load(k.scale + scales + lane);
          const F32 low = V::load(k.low + scales + lane), high = V::load(k.high + scales + lane);
          const F32 p = V::clamp(V::round(V::divide(v, s)), low, high);
          V::store(k.v + at, p);
          V::store(k.e + at, V::sub(w, V::mul(s, p)));
        } else {
          V::store(k.v + at, v);
          V::store(k.e + at, V::sub(V::set(0.0f), v));
        }
      }
    }
  }
}

template <class V>
void feedback_product(const FeedbackProductArgs& k) {
  feedback_sums<V>(k.a, k.b, k.columns, k.inputs, k.columns, k.out);
}

template <class V>
struct FeedbackRows {
  static constexpr FeedbackRow rows[] = {{feedback<V, true>, feedback<V, false>, feedback_product<V>}};
};

}  // namespace lowbit
