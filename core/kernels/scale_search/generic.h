// The search once, for every vector width.
#pragma once
#include <algorithm>
#include <limits>

#include "kernels/scale_search/scale_search.h"
#include "simd/vec.h"

namespace lowbit {

// Scales that a type can hold, within the range that the contract allows.
constexpr float kLeastScale = 0x1p-125f, kMostScale = 0x1.fffffep+111f, kMostBfloat = 0x1.fep+111f;
constexpr float kLeastHalf = 0x1p-24f, kMostHalf = 65504.0f;

template <class V>
struct ScaleSearch {
  using F32 = typename V::F32;
  const ScaleSearchArgs& k;
  int64_t lane;  // the first
  float best_error[V::width], best_scale[V::width], best_zero[V::width];

  F32 rounded(F32 s) const {
    if (k.rounding == Element::f16) {
      half_t stored[V::width];
      V::store(stored, V::clamp(s, V::set(kLeastHalf), V::set(kMostHalf)));
      return V::load(stored);
    }
    if (k.rounding == Element::f32) return V::clamp(s, V::set(kLeastScale), V::set(kMostScale));
    bfloat_t stored[V::width];
    V::store(stored, V::clamp(s, V::set(kLeastScale), V::set(kMostBfloat)));
    return V::load(stored);
  }

  struct Sums {
    F32 error, xp, pp;
  };

  template <bool Products>
  Sums sums(F32 s, F32 z) const {
    const F32 inverse = V::divide(V::set(1.0f), s);
    const F32 low = V::sub(V::set(k.qmin), z), high = V::sub(V::set(k.qmax), z);
    Sums sum{V::set(0.0f), V::set(0.0f), V::set(0.0f)};
    for (int64_t i = 0; i < k.elements; ++i) {
      const F32 x = V::load(k.x + i * kSearchLanes + lane), w = V::load(k.w + i * kSearchLanes + lane);
      const F32 p = V::clamp(V::round(V::mul(x, inverse)), low, high);
      const F32 off = V::sub(x, V::mul(s, p));
      sum.error = V::add(sum.error, V::mul(V::mul(w, off), off));
      if constexpr (Products) {
        const F32 wp = V::mul(w, p);
        sum.xp = V::add(sum.xp, V::mul(wp, x));
        sum.pp = V::add(sum.pp, V::mul(wp, p));
      }
    }
    return sum;
  }

  // Keeps the candidate where its error is less. One of infinity or NaN never is: the first stays where all are.
  void keep(F32 error, F32 s, F32 z) {
    float e[V::width], scale[V::width], zero[V::width];
    V::store(e, error), V::store(scale, s), V::store(zero, z);
    for (int i = 0; i < V::width; ++i) {
      const bool better = e[i] < best_error[i];
      best_error[i] = better ? e[i] : best_error[i];
      best_scale[i] = better ? scale[i] : best_scale[i];
      best_zero[i] = better ? zero[i] : best_zero[i];
    }
  }

  void attempt(F32 s, F32 z) {
    const Sums found = sums<true>(s, z);
    keep(found.error, s, z);
    // Where the sums give no positive scale, the least one is tried.
    float xp[V::width], pp[V::width];
    V::store(xp, found.xp), V::store(pp, found.pp);
    for (int i = 0; i < V::width; ++i) xp[i] = xp[i] > 0 && pp[i] > 0 ? xp[i] / pp[i] : 0.0f;
    const F32 refitted = rounded(V::load(xp));
    keep(sums<false>(refitted, z).error, refitted, z);
  }

  void run() {
    F32 least = V::set(0.0f), most = V::set(0.0f);  // ranges contain 0
    for (int64_t i = 0; i < k.elements; ++i) {
      const F32 x = V::load(k.x + i * kSearchLanes + lane);
      least = V::min_skip_nan(x, least), most = V::max_skip_nan(x, most);
    }
    const F32 range = V::sub(most, least), largest = V::max_skip_nan(V::sub(V::set(0.0f), least), most);
    const F32 base = V::divide(k.symmetric ? largest : range, V::set(k.symmetric ? -k.qmin : k.qmax - k.qmin));
    const F32 middle = V::mul(V::add(most, least), V::set(0.5f)), center = V::set((k.qmin + k.qmax) * 0.5f);
    // Candidate i of the zero point: 0, -1 and so on where symmetric, else around the middle of the range.
    const auto zero_point = [&](F32 s, int32_t i) {
      if (k.symmetric) return V::set(static_cast<float>(-i));
      const F32 z = V::round(V::sub(center, V::divide(middle, s)));
      return V::clamp(V::add(z, V::set(static_cast<float>(i - k.offsets))), V::set(k.qmin), V::set(k.qmax));
    };
    const F32 first = rounded(V::mul(base, V::set(k.factors[0])));
    V::store(best_scale, first), V::store(best_zero, zero_point(first, 0));
    for (float& e : best_error) e = std::numeric_limits<float>::infinity();
    for (int64_t f = 0; f < k.factor_count; ++f) {
      const F32 s = rounded(V::mul(base, V::set(k.factors[f])));
      for (int32_t i = 0; i <= (k.symmetric ? k.offsets : 2 * k.offsets); ++i) attempt(s, zero_point(s, i));
    }
    float width[V::width];
    V::store(width, range);
    for (int i = 0; i < V::width; ++i) {  // all weights are 0: the contract's scale of 1
      if (width[i] == 0) best_scale[i] = 1, best_zero[i] = std::clamp(0.0f, k.qmin, k.qmax), best_error[i] = 0;
      k.scale[lane + i] = best_scale[i], k.zero_point[lane + i] = best_zero[i], k.error[lane + i] = best_error[i];
    }
  }
};

template <class V>
void scale_search(const ScaleSearchArgs& k) {
  for (int64_t lane = 0; lane < kSearchLanes; lane += V::width) ScaleSearch<V>{k, lane, {}, {}, {}}.run();
}

template <class V>
struct ScaleSearchRows {
  static constexpr ScaleSearchRow rows[] = {{scale_search<V>}};
};

}  // namespace lowbit
