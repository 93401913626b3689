// The algorithm once, for every vector width and element type.
#pragma once
#include "kernels/fake_quant/fake_quant.h"
#include "simd/quotient.h"
#include "simd/vec.h"

namespace lowbit {

// One operation under given scales: one for all lanes, or one per lane.
template <class V, class T, FakeOp Op, Quotient Kind>
struct FakeStep {
  using F = decltype(V::set(T{}));
  // The fused quotient of an infinity is NaN.
  static constexpr bool kClampsFirst = Divisor<V, T, Kind>::kind == Quotient::fused;

  Divisor<V, T, Kind> divisor;
  F scale, lo, hi;          // lo, hi: qmin - z, qmax - z
  F least = lo, most = hi;  // bounds for x, used with the fused quotient: lo * scale, hi * scale

  static __attribute__((always_inline)) FakeStep of(T s, int32_t z, int32_t qmin, int32_t qmax) {
    const T l = static_cast<T>(qmin - z), h = static_cast<T>(qmax - z);
    return {Divisor<V, T, Kind>::of(s, reciprocal(s)), V::set(s), V::set(l), V::set(h), V::set(l * s), V::set(h * s)};
  }
  // The constants of `width` columns.
  static __attribute__((always_inline)) FakeStep load(const T* s, const int32_t* z, typename V::I32 qmin,
                                                      typename V::I32 qmax) {
    const auto zero = V::load_i32(z);
    const F scale = V::load(s), lo = number(V::sub(qmin, zero)), hi = number(V::sub(qmax, zero));
    return {Divisor<V, T, Kind>::of(scale), scale, lo, hi, V::mul(lo, scale), V::mul(hi, scale)};
  }
  // The same of n columns, fewer than a vector.
  static __attribute__((always_inline)) FakeStep load_few(const T* s, const int32_t* z, int64_t n, typename V::I32 qmin,
                                                          typename V::I32 qmax) {
    T scale[V::width];
    int32_t zero[V::width];
    for (int k = 0; k < V::width; ++k) scale[k] = k < n ? s[k] : T{1}, zero[k] = k < n ? z[k] : 0;
    return load(scale, zero, qmin, qmax);
  }
  static __attribute__((always_inline)) F number(typename V::I32 i) {
    if constexpr (sizeof(T) == 8) {
      return V::to_f64(i);
    } else {
      return V::to_f32(i);
    }
  }

  __attribute__((always_inline)) F operator()(F x, F dy) const {
    if constexpr (Op == FakeOp::scaled) return V::mul(dy, scale);
    if constexpr (Op == FakeOp::fake) {
      const F rounded = V::round(divisor(kClampsFirst ? V::clamp(x, least, most) : x));
      return numbers(kClampsFirst ? rounded : V::clamp(rounded, lo, hi));
    }
    const F r = V::round(divisor(x));
    if constexpr (Op == FakeOp::fake_backward) return V::only_in(r, lo, hi, dy);
    return V::only_in(r, lo, hi, V::divide(dy, scale));
  }
  // Adding 0 makes +0 of -0, as the integer between quantize and dequantize does; it changes nothing else.
  __attribute__((always_inline)) F numbers(F steps) const {
    if constexpr (V::has_fma && sizeof(T) == 4) return V::fma(steps, scale, V::set(T{0}));
    return V::mul(V::add(steps, V::set(T{0})), scale);
  }
};

// Rounding: of bfloat16 stored in pairs. fake_backward keeps dy as it is.
template <class V, class In, FakeOp Op,
          PairRounding Rounding = Op == FakeOp::fake_backward ? PairRounding::exact : PairRounding::any>
struct Operands {
  using F = decltype(V::set(compute_t<In>{}));
  static constexpr bool kPairs = requires(const In* p) { V::load_pair(p); };
  static constexpr PairRounding kRounding = Rounding;
  static constexpr bool kStreams = requires(In* p, F v) { V::stream(p, v); };
  const In *x, *dy;
  In* y;

  template <class Step>
  __attribute__((always_inline)) F of(int64_t i, const Step& step) const {
    const F nothing = V::set(compute_t<In>{0});
    return step(Op == FakeOp::scaled ? nothing : V::load(x + i), Op == FakeOp::fake ? nothing : V::load(dy + i));
  }
  template <bool Stream>
  __attribute__((always_inline)) void keep(int64_t i, F result) const {
    if constexpr (Stream) {
      V::stream(y + i, result);
    } else {
      V::store_number(y + i, result);  // a NaN here came from In, so that store_number keeps it a NaN
    }
  }
  template <class Step>
  __attribute__((always_inline)) void at(int64_t i, const Step& step) const {
    keep<false>(i, of(i, step));
  }
  // Less than a vector, in padded copies. An overlapping vector would read results where y is dy.
  template <class Step>
  void tail(int64_t i, int64_t n, const Step& step) const {
    In a[V::width] = {}, b[V::width] = {}, out[V::width];
    if (Op != FakeOp::scaled) std::memcpy(a, x + i, n * sizeof(In));
    if (Op != FakeOp::fake) std::memcpy(b, dy + i, n * sizeof(In));
    Operands{a, b, out}.at(0, step);
    std::memcpy(y + i, out, n * sizeof(In));
  }
  template <class Step>
  __attribute__((always_inline)) auto pair_of(int64_t i, const Step& step) const {
    const auto a = Op == FakeOp::scaled ? V::load_pair(dy + i) : V::load_pair(x + i);
    const auto b = Op == FakeOp::fake ? a : V::load_pair(dy + i);
    return decltype(a){step(a.a, b.a), step(a.b, b.b)};
  }
  // Four vectors, or pairs, are loaded before any is stored, because of 4 KiB aliasing.
  template <class Step>
  __attribute__((always_inline)) void run(int64_t n, const Step& step) const {
    constexpr int w = V::width, kStep = sizeof(In) == 2 ? 8 * w : 4 * w;
    int64_t i = 0;
    for (; i + kStep <= n; i += kStep) {
      if constexpr (kPairs) {
        const auto a = pair_of(i, step), b = pair_of(i + 2 * w, step);
        const auto c = pair_of(i + 4 * w, step), d = pair_of(i + 6 * w, step);
        V::template store_pair<Rounding>(y + i, a);
        V::template store_pair<Rounding>(y + i + 2 * w, b);
        V::template store_pair<Rounding>(y + i + 4 * w, c);
        V::template store_pair<Rounding>(y + i + 6 * w, d);
      } else {
        F r[kStep / w];
        for (int j = 0; j < kStep / w; ++j) r[j] = of(i + j * w, step);
        for (int j = 0; j < kStep / w; ++j) keep<false>(i + j * w, r[j]);
      }
    }
    for (; i + w <= n; i += w) at(i, step);
    if (i < n) tail(i, n - i, step);
  }
  // With non-temporal stores, for arrays that exceed the caches.
  template <class Step>
  void run_streaming(int64_t n, const Step& step) const {
    constexpr int w = V::width;
    const int64_t to_vector = (-reinterpret_cast<uintptr_t>(y) & (w * sizeof(In) - 1)) / sizeof(In);
    int64_t i = to_vector < n ? to_vector : n;
    if (i > 0) tail(0, i, step);
    for (; i + w <= n; i += w) keep<true>(i, of(i, step));
    if (i < n) tail(i, n - i, step);
  }
};

// Whether k * s is a tie between two bfloat16 for a k in [lo, hi].
static inline bool has_ties(float s, int32_t lo, int32_t hi) {
  int32_t found = 0;
  for (int32_t k = lo; k <= hi; ++k) found |= (float_to_bits(static_cast<float>(k) * s) & 0xffffu) == 0x8000u;
  return found != 0;
}

template <class V, class In, FakeOp Op, Quotient Kind, PairRounding Rounding>
void fake_grouped_as(const FakeQuantArgs& a) {
  const auto* scale = static_cast<const compute_t<In>*>(a.scale);
  Operands<V, In, Op, Rounding> o{static_cast<const In*>(a.x), static_cast<const In*>(a.dy), static_cast<In*>(a.y)};
  for (int64_t g = 0; g * a.group < a.n; ++g) {
    const auto step = FakeStep<V, compute_t<In>, Op, Kind>::of(scale[g], a.zero[g], a.qmin, a.qmax);
    if constexpr (o.kStreams) {
      a.stream ? o.run_streaming(a.group, step) : o.run(a.group, step);
    } else {
      o.run(a.group, step);
    }
    if (Op != FakeOp::scaled) o.x += a.group;
    if (Op != FakeOp::fake) o.dy += a.group;
    o.y += a.group;
  }
}

// Whether the fused quotient is proven for the scales and the range of codes.
template <class V, class In>
bool may_fuse(const FakeQuantArgs& a, int64_t scales) {
  const auto* scale = static_cast<const compute_t<In>*>(a.scale);
  bool good = a.qmax - a.qmin <= 255;
  for (int64_t i = 0; i < scales; ++i) good &= scale[i] <= static_cast<compute_t<In>>(kMaxQuotientScale);
  return good;
}

// Whether bfloat16 results under a single scale are never ties, which makes rounding cheaper.
template <class V, class In>
bool rounds_without_ties(const FakeQuantArgs& a) {
  constexpr int64_t kWorthwhile = 2048;  // elements, for which has_ties is called
  if constexpr (!Operands<V, In, FakeOp::fake>::kPairs) return false;
  return a.n == a.group && a.n >= kWorthwhile &&
         !has_ties(*static_cast<const float*>(a.scale), a.qmin - *a.zero, a.qmax - *a.zero);
}

template <class V, class In, FakeOp Op>
void fake_grouped(const FakeQuantArgs& a) {
  constexpr PairRounding kRounding = Operands<V, In, Op>::kRounding;
  if (!may_fuse<V, In>(a, a.group ? a.n / a.group : 0))
    return fake_grouped_as<V, In, Op, Quotient::division, kRounding>(a);
  if constexpr (Op == FakeOp::fake && Operands<V, In, Op>::kPairs)
    if (rounds_without_ties<V, In>(a)) return fake_grouped_as<V, In, Op, Quotient::fused, PairRounding::no_ties>(a);
  fake_grouped_as<V, In, Op, Quotient::fused, kRounding>(a);
}

// Columns whose constants stay in L1 for all rows.
constexpr int64_t kStripColumns = 1024;

// The constants of n columns, at most kStripColumns, in vectors, padded.
template <class V, class T, class Step>
struct ColumnSteps {
  alignas(64) Step steps[kStripColumns / V::width];

  ColumnSteps(const T* scale, const int32_t* zero, int64_t n, int32_t qmin, int32_t qmax) {
    constexpr int w = V::width;
    const auto least = V::set_i32(qmin), most = V::set_i32(qmax);
    int64_t i = 0;
    for (; i + w <= n; i += w) steps[i / w] = Step::load(scale + i, zero + i, least, most);
    if (i < n) steps[i / w] = Step::load_few(scale + i, zero + i, n - i, least, most);
  }
};

// Several rows together, so that constants are loaded once for all of them.
template <int Rows, bool Stream, class V, class In, FakeOp Op, class Step>
__attribute__((always_inline)) inline void fake_rows(const Operands<V, In, Op>& o, const Step* steps, int64_t n,
                                                     int64_t stride) {
  constexpr int w = V::width;
  int64_t i = 0;
  for (; i + w <= n; i += w) {
    // Loads come before stores: row strides are often a multiple of 4096 bytes (4 KiB aliasing).
    typename Operands<V, In, Op>::F results[Rows];
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) results[r] = o.of(i + r * stride, steps[i / w]);
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) o.template keep<Stream>(i + r * stride, results[r]);
  }
  if (i < n)
    for (int r = 0; r < Rows; ++r) o.tail(i + r * stride, n - i, steps[i / w]);
}

template <bool Stream, class V, class In, FakeOp Op, class Step>
void fake_strip(Operands<V, In, Op> o, const Step* steps, int64_t n, int64_t rows, int64_t stride) {
  constexpr int kAtOnce = 4;
  const auto advance = [&](int64_t by) {
    if (Op != FakeOp::scaled) o.x += by * stride;
    if (Op != FakeOp::fake) o.dy += by * stride;
    o.y += by * stride;
  };
  int64_t r = 0;
  for (; r + kAtOnce <= rows; r += kAtOnce, advance(kAtOnce)) fake_rows<kAtOnce, Stream>(o, steps, n, stride);
  for (; r < rows; ++r, advance(1)) fake_rows<1, Stream>(o, steps, n, stride);
}

template <class V, class In, FakeOp Op, Quotient Kind>
void fake_columns_as(const FakeQuantArgs& a) {
  using T = compute_t<In>;
  using Step = FakeStep<V, T, Op, Kind>;
  const T* scale = static_cast<const T*>(a.scale);
  for (int64_t c = 0; c < a.n; c += kStripColumns) {
    const int64_t n = a.n - c < kStripColumns ? a.n - c : kStripColumns;
    const ColumnSteps<V, T, Step> constants(scale + c, a.zero + c, n, a.qmin, a.qmax);
    const In *x = static_cast<const In*>(a.x), *dy = static_cast<const In*>(a.dy);
    const Operands<V, In, Op> o{Op == FakeOp::scaled ? x : x + c, Op == FakeOp::fake ? dy : dy + c,
                                static_cast<In*>(a.y) + c};
    if constexpr (o.kStreams) {
      constexpr uintptr_t vector = V::width * sizeof(In);
      if (a.stream && reinterpret_cast<uintptr_t>(o.y) % vector == 0 && a.stride * sizeof(In) % vector == 0) {
        fake_strip<true>(o, constants.steps, n, a.rows, a.stride);
        continue;
      }
    }
    fake_strip<false>(o, constants.steps, n, a.rows, a.stride);
  }
}

template <class V, class In, FakeOp Op>
void fake_columns(const FakeQuantArgs& a) {
  constexpr int64_t kWorthwhile = 3;  // rows; the constants of the fused quotient take two divisions
  a.rows >= kWorthwhile&& may_fuse<V, In>(a, a.n) ? fake_columns_as<V, In, Op, Quotient::fused>(a)
                                                  : fake_columns_as<V, In, Op, Quotient::division>(a);
}

// Learned scale and zero point.

constexpr int kLearnedBlock = 512;  // elements whose terms are stored before they are summed

// Terms of a block: ds += d * t, dz += c * -s.
template <class T>
struct Terms {
  T d[kLearnedBlock], t[kLearnedBlock], c[kLearnedBlock];
};

template <class F>
struct VectorTerms {
  F d, t, c, y;
};

template <class V, class F, class Step>
LOWBIT_INLINE VectorTerms<F> learned_terms(F g, F q, F r, const Step& k) {
  const F inside = V::only_in(r, k.lo, k.hi, g);
  const F clipped = V::add(V::only_below(r, k.lo, g), V::only_above(r, k.hi, g));
  const F edges = V::add(V::only_below(r, k.lo, k.lo), V::only_above(r, k.hi, k.hi));
  // d is 0 where x is NaN.
  return {V::add(inside, clipped), V::add(V::only_in(r, k.lo, k.hi, V::sub(r, q)), edges), clipped, inside};
}

// Writes y, and the terms of one vector.
template <class V, class In, class Step>
LOWBIT_INLINE void learned_vector(const In* x, const In* dy, In* y, const Step& k, Terms<compute_t<In>>& terms, int i) {
  const auto q = V::divide(V::load(x), k.scale);
  const auto found = learned_terms<V>(V::load(dy), q, V::round(q), k);
  V::store(terms.d + i, found.d);
  V::store(terms.t + i, found.t);
  V::store(terms.c + i, found.c);
  V::store_number(y, found.y);
}

template <class V, class In, class Step>
LOWBIT_INLINE void learned_tail(const In* x, const In* dy, In* y, int64_t n, const Step& k, Terms<compute_t<In>>& terms,
                                int i) {
  In a[V::width] = {}, b[V::width] = {}, out[V::width];
  std::memcpy(a, x, n * sizeof(In));
  std::memcpy(b, dy, n * sizeof(In));
  learned_vector<V>(a, b, out, k, terms, i);
  std::memcpy(y, out, n * sizeof(In));
}

template <class V>
double folded(const typename V::Sum8& sum) {
  double l[8];
  V::lanes(sum, l);
  return sum_of_eight(l);
}

template <class V, class In>
void learned_run(const LearnedArgs& a) {
  using T = compute_t<In>;
  constexpr int w = V::width;
  const In *x = static_cast<const In*>(a.step.x), *dy = static_cast<const In*>(a.step.dy);
  In* y = static_cast<In*>(a.step.y);
  const T s = *static_cast<const T*>(a.step.scale);
  const auto k =
      FakeStep<V, T, FakeOp::fake_backward, Quotient::division>::of(s, *a.step.zero, a.step.qmin, a.step.qmax);
  alignas(64) Terms<T> terms;
  T minus[8];
  for (T& m : minus) m = -s;
  typename V::Sum8 ds, dz;
  int64_t begin = 0;
  if constexpr (requires { V::add_products(ds, k.scale, k.scale); }) {
    // Terms go to the sums from registers. Most vectors have nothing clipped, and then add nothing to dz.
    const auto negative = V::set(-s);
    for (; begin + w <= a.step.n; begin += w) {
      const auto g = V::load(dy + begin), q = V::divide(V::load(x + begin), k.scale), r = V::round(q);
      if (V::all_in(r, k.lo, k.hi)) {
        V::add_products(ds, g, V::sub(r, q));
        V::store_number(y + begin, g);
      } else {
        const auto found = learned_terms<V>(g, q, r, k);
        V::add_products(ds, found.d, found.t);
        V::add_products(dz, found.c, negative);
        V::store_number(y + begin, found.y);
      }
    }
  }
  for (; begin < a.step.n; begin += kLearnedBlock) {
    const int n = static_cast<int>(a.step.n - begin < kLearnedBlock ? a.step.n - begin : kLearnedBlock);
    int i = 0;
    for (; i + w <= n; i += w) learned_vector<V>(x + begin + i, dy + begin + i, y + begin + i, k, terms, i);
    if (i < n) learned_tail<V>(x + begin + i, dy + begin + i, y + begin + i, n - i, k, terms, i), i += w;
    for (; i % 8 != 0; ++i) terms.d[i] = terms.t[i] = terms.c[i] = 0;
    for (int j = 0; j < n; j += 8) {
      V::sum_products(ds, terms.d + j, terms.t + j);
      V::sum_products(dz, terms.c + j, minus);
    }
  }
  *a.ds = folded<V>(ds), *a.dz = folded<V>(dz);
}

template <class V, class In>
void learned_columns(const LearnedArgs& a) {
  using T = compute_t<In>;
  using Step = FakeStep<V, T, FakeOp::fake_backward, Quotient::division>;
  constexpr int w = V::width;
  const T* scale = static_cast<const T*>(a.step.scale);
  const auto qmin = V::set_i32(a.step.qmin), qmax = V::set_i32(a.step.qmax);
  alignas(64) Terms<T> terms;
  for (int64_t begin = 0; begin < a.step.n; begin += kLearnedBlock) {
    const int n = static_cast<int>(a.step.n - begin < kLearnedBlock ? a.step.n - begin : kLearnedBlock);
    const T* s = scale + begin;
    const int32_t* z = a.step.zero + begin;
    for (int64_t r = 0; r < a.step.rows; ++r) {
      const In* x = static_cast<const In*>(a.step.x) + r * a.step.stride + begin;
      const In* dy = static_cast<const In*>(a.step.dy) + r * a.step.stride + begin;
      In* y = static_cast<In*>(a.step.y) + r * a.step.stride + begin;
      int i = 0;
      for (; i + w <= n; i += w)
        learned_vector<V>(x + i, dy + i, y + i, Step::load(s + i, z + i, qmin, qmax), terms, i);
      if (i < n)
        learned_tail<V>(x + i, dy + i, y + i, n - i, Step::load_few(s + i, z + i, n - i, qmin, qmax), terms, i);
      for (int j = 0; j < n; ++j) {
        a.ds[begin + j] += static_cast<double>(terms.d[j]) * static_cast<double>(terms.t[j]);
        a.dz[begin + j] += static_cast<double>(terms.c[j]) * -static_cast<double>(s[j]);
      }
    }
  }
}

}  // namespace lowbit
