// The algorithm once, for every vector width and element type.
#pragma once
#include "kernels/range/range.h"
#include "simd/vec.h"

namespace lowbit {

template <class V, class In>
struct Ranger {
  using T = compute_t<In>;
  using F = decltype(V::set(T{}));
  static constexpr T kInfinity = sizeof(T) == 8 ? static_cast<T>(__builtin_inf()) : static_cast<T>(__builtin_inff());

  // How many NaN. Called only where there is one.
  LOWBIT_INLINE int64_t count(const In* x, int64_t n) {
    int64_t nans = 0;
    for (int64_t i = 0; i < n; ++i) {
      const T v = widen(x[i]);
      nans += v != v;
    }
    return nans;
  }

  // max|x| of a run; a NaN sets *nan. Ahead: prefetch distance in bytes. In f32 the bits of |x| are compared as
  // integers: a NaN is the maximum, so it needs no check of its own.
  template <int64_t Ahead = 0>
  LOWBIT_INLINE T run_abs(const In* x, int64_t n, bool* nan) {
    constexpr int w = V::width;
    const auto fold = [&](auto zero, auto measure, auto greater) __attribute__((always_inline)) {
      auto m0 = zero, m1 = zero;
      int64_t i = 0;
      for (; i + 2 * w <= n; i += 2 * w) {
        if constexpr (Ahead != 0) prefetch_ahead<Ahead, 3>(x + i, 2 * w * sizeof(In));
        m0 = greater(measure(x + i), m0), m1 = greater(measure(x + i + w), m1);
      }
      if (i < n) m0 = greater(measure(x + n - w), m0);  // the last one or two vectors overlap
      if (n - i > w) m1 = greater(measure(x + i), m1);  // the ones before
      return greater(m0, m1);
    };
    if (n < w) {
      T found = 0;
      for (int64_t i = 0; i < n; ++i) {
        const T v = widen(x[i]), u = v < 0 ? -v : v;
        found = u > found ? u : found;
        *nan |= v != v;
      }
      return found;
    }
    if constexpr (sizeof(T) == 4) {
      const int32_t bits = V::reduce_max_i32(fold(
          V::set_i32(0), [](const In* p) __attribute__((always_inline)) { return V::magnitude(V::load(p)); },
          [](auto a, auto b) __attribute__((always_inline)) { return V::max(a, b); }));
      *nan |= bits > 0x7f800000;
      return bits_to_float(static_cast<uint32_t>(bits));
    } else {
      auto flag = V::no_nan();
      const T found = V::reduce_max(fold(
          V::set(T{0}),
          [&](const In* p) __attribute__((always_inline)) {
            const F v = V::load(p);
            flag = V::note_nan(flag, v, v);
            return V::abs(v);
          },
          [](F a, F b) __attribute__((always_inline)) { return V::max_skip_nan(a, b); }));
      *nan |= V::any(flag);
      return found;
    }
  }

  // One run; a NaN raises `flag`, or *tail_nan.
  template <int64_t Ahead = 0>
  LOWBIT_INLINE typename V::Flag run(const In* x, int64_t n, T* lo, T* hi, typename V::Flag flag, bool* tail_nan) {
    constexpr int w = V::width;
    T least = kInfinity, most = -kInfinity;
    int64_t i = 0;
    if (n >= w) {
      F lo0 = V::set(kInfinity), hi0 = V::set(-kInfinity), lo1 = lo0, hi1 = hi0;
      for (; i + 2 * w <= n; i += 2 * w) {
        if constexpr (Ahead != 0) prefetch_ahead<Ahead, 3>(x + i, 2 * w * sizeof(In));
        const F a = V::load(x + i), b = V::load(x + i + w);
        lo0 = V::min_skip_nan(a, lo0), hi0 = V::max_skip_nan(a, hi0);
        lo1 = V::min_skip_nan(b, lo1), hi1 = V::max_skip_nan(b, hi1);
        flag = V::note_nan(flag, a, b);
      }
      if (i < n) {  // the last one or two vectors overlap what is already done
        const F a = V::load(x + n - w), b = n - i > w ? V::load(x + i) : a;
        lo0 = V::min_skip_nan(a, lo0), hi0 = V::max_skip_nan(a, hi0);
        lo1 = V::min_skip_nan(b, lo1), hi1 = V::max_skip_nan(b, hi1);
        flag = V::note_nan(flag, a, b);
      }
      least = V::reduce_min(V::min_skip_nan(lo0, lo1));
      most = V::reduce_max(V::max_skip_nan(hi0, hi1));
    } else {
      for (; i < n; ++i) {
        const T v = widen(x[i]);
        least = v < least ? v : least;
        most = v > most ? v : most;
        *tail_nan |= v != v;
      }
    }
    *lo = least + T{0};  // -0 -> +0
    *hi = most + T{0};
    return flag;
  }
};

template <class V, class In>
void range_run(const RangeArgs& a) {
  using T = compute_t<In>;
  const In* x = static_cast<const In*>(a.x);
  bool tail_nan = false;
  T *lo = static_cast<T*>(a.lo), *hi = static_cast<T*>(a.hi);
  const auto flag = Ranger<V, In>::run(x, a.n, lo, hi, V::no_nan(), &tail_nan);
  if (V::any(flag) || tail_nan) *a.nan += Ranger<V, In>::count(x, a.n);
}

template <class V, class In>
void range_columns(const RangeArgs& a) {
  using T = compute_t<In>;
  constexpr int w = V::width;
  T *lo = static_cast<T*>(a.lo), *hi = static_cast<T*>(a.hi);
  auto flag = V::no_nan();
  bool tail_nan = false;
  for (int64_t r = 0; r < a.rows; ++r) {
    const In* x = static_cast<const In*>(a.x) + r * a.stride;
    int64_t j = 0;
    for (; j + w <= a.n; j += w) {
      const auto v = V::load(x + j);
      V::store(lo + j, V::min_skip_nan(v, V::load(lo + j)));
      V::store(hi + j, V::max_skip_nan(v, V::load(hi + j)));
      flag = V::note_nan(flag, v, v);
    }
    for (; j < a.n; ++j) {
      const T v = widen(x[j]);
      lo[j] = v < lo[j] ? v : lo[j];
      hi[j] = v > hi[j] ? v : hi[j];
      tail_nan |= v != v;
    }
  }
  for (int64_t j = 0; j < a.n; ++j) {
    lo[j] += T{0};
    hi[j] += T{0};
  }
  if (V::any(flag) || tail_nan)
    for (int64_t r = 0; r < a.rows; ++r)
      *a.nan += Ranger<V, In>::count(static_cast<const In*>(a.x) + r * a.stride, a.n);
}

template <class V, class In>
double sum_abs(const void* data, int64_t n) {
  const In* x = static_cast<const In*>(data);
  typename V::Sum8 acc;
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) V::sum_abs(acc, x + i);
  double lane[8];
  V::lanes(acc, lane);
  for (int k = 0; i < n; ++i, ++k) lane[k] += __builtin_fabs(static_cast<double>(widen(x[i])));
  return sum_of_eight(lane);
}

template <class V>
struct RangeRows {
  static constexpr RangeRow rows[] = {
#define ROW(e, In) {Element::e, range_run<V, In>, range_columns<V, In>, sum_abs<V, In>},
#include "kernels/range/kernels.inc"
#undef ROW
  };
};

}  // namespace lowbit
