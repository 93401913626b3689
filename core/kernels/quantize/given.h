// Codes under given scales, for every vector width and element type.
#pragma once
#include "kernels/quantize/quantize.h"
#include "simd/quotient.h"
#include "simd/vec.h"

namespace lowbit {

// Whether V loads four vectors of this element at once, in the order that its packing restores.
template <class V, class In>
constexpr bool has_load4 = requires(const In* p) { V::load4(p); };

// The fused quotient is not proven for 16-bit codes.
template <class C, class T>
LOWBIT_INLINE bool must_divide(T s) {
  return sizeof(C) != 1 || s > static_cast<T>(kMaxQuotientScale);
}

template <class V, class In, class C, Quotient Kind>
struct UniformQuantizer {
  using T = compute_t<In>;
  using F = decltype(V::set(T{}));

  Divisor<V, T, Kind> divisor;
  F lo, hi;
  typename V::I32 zero, least;  // least: qmin - z
  typename V::ByteShift shift;

  // limit: (qmax - z) * s
  __attribute__((always_inline)) UniformQuantizer(T s, Reciprocal<T> r, T limit, int32_t z, int32_t qmin)
      : divisor(Divisor<V, T, Kind>::of(s, r)),
        lo(V::set(static_cast<T>(qmin - z) * s)),
        hi(V::set(limit)),
        zero(V::set_i32(z)),
        least(V::set_i32(qmin - z)),
        shift(z, qmin) {}

  // rne(x / s), at most qmax - z, not yet clamped from below.
  __attribute__((always_inline)) typename V::I32 steps(F x) const { return V::round_i32(divisor(V::limit(x, lo, hi))); }
  __attribute__((always_inline)) typename V::I32 steps(const In* p) const { return steps(V::load(p)); }
  __attribute__((always_inline)) typename V::I32 codes(const In* p) const {
    return V::add(V::max(steps(p), least), zero);
  }

  __attribute__((always_inline)) void block(const In* x, C* q) const {
    constexpr int w = V::width;
    if constexpr (sizeof(C) == 1 && has_load4<V, In>) {
      const auto v = V::load4(x);
      V::template store_bytes4<true>(q, steps(v.a), steps(v.b), steps(v.c), steps(v.d), shift);
    } else if constexpr (sizeof(C) == 1) {
      V::store_bytes4(q, steps(x), steps(x + w), steps(x + 2 * w), steps(x + 3 * w), shift);
    } else {
      V::store_codes4(q, codes(x), codes(x + w), codes(x + 2 * w), codes(x + 3 * w));
    }
  }

  __attribute__((always_inline)) void run(const In* x, C* q, int64_t n) const {
    constexpr int w = V::width;
    int64_t i = 0;
    for (; i + 4 * w <= n; i += 4 * w) block(x + i, q + i);
    for (; i + w <= n; i += w) V::store_codes(q + i, codes(x + i));
    if (w == 1 || i >= n) return;
    if (n >= w) {  // the last vector overlaps the one before
      V::store_codes(q + n - w, codes(x + n - w));
    } else {
      In in[w] = {};
      C out[w];
      std::memcpy(in, x + i, (n - i) * sizeof(In));
      V::store_codes(out, codes(in));
      std::memcpy(q + i, out, (n - i) * sizeof(C));
    }
  }
};

template <class V, class In, class C, Quotient Kind>
void quantize_uniform_as(const QuantizeArgs& a, compute_t<In> s, Reciprocal<compute_t<In>> r, int32_t z) {
  const UniformQuantizer<V, In, C, Kind> k(s, r, static_cast<compute_t<In>>(a.qmax - z) * s, z, a.qmin);
  k.run(static_cast<const In*>(a.x), static_cast<C*>(a.q), a.n);
}

template <class V, class In, class C>
void quantize_uniform(const QuantizeArgs& a) {
  const auto s = *static_cast<const compute_t<In>*>(a.scale);
  const int32_t z = a.zero ? *a.zero : 0;
  if (must_divide<C>(s)) return quantize_uniform_as<V, In, C, Quotient::division>(a, s, reciprocal(s), z);
  quantize_uniform_as<V, In, C, Quotient::fused>(a, s, reciprocal(s), z);
}

template <class V, class In, class C, Quotient Kind, bool Zero>
void quantize_grouped_as(const QuantizeArgs& a, int64_t groups) {
  using T = compute_t<In>;
  // Constants that depend on the scale alone are computed for many groups at once, off the critical path.
  constexpr int64_t kBatch = 64;
  const T* scale = static_cast<const T*>(a.scale);
  const In* x = static_cast<const In*>(a.x);
  C* q = static_cast<C*>(a.q);
  for (int64_t b = 0; b < groups; b += kBatch) {
    T inv[kBatch], low[kBatch], limit[kBatch];
    const int64_t m = groups - b < kBatch ? groups - b : kBatch;
    for (int64_t g = 0; g < m; ++g) {
      const Reciprocal<T> r = reciprocal(scale[b + g]);
      inv[g] = r.inv, low[g] = r.low;
      limit[g] = static_cast<T>(a.qmax - (Zero ? a.zero[b + g] : 0)) * scale[b + g];
    }
    for (int64_t g = 0; g < m; ++g, x += a.group, q += a.group) {
      const int32_t z = Zero ? a.zero[b + g] : 0;
      UniformQuantizer<V, In, C, Kind>(scale[b + g], {inv[g], low[g]}, limit[g], z, a.qmin).run(x, q, a.group);
    }
  }
}

template <class V, class In, class C>
void quantize_grouped(const QuantizeArgs& a) {
  const auto* scale = static_cast<const compute_t<In>*>(a.scale);
  const int64_t groups = a.group ? a.n / a.group : 0;
  bool divide = false;
  for (int64_t g = 0; g < groups; ++g) divide |= must_divide<C>(scale[g]);
  if (divide) {
    a.zero ? quantize_grouped_as<V, In, C, Quotient::division, true>(a, groups)
           : quantize_grouped_as<V, In, C, Quotient::division, false>(a, groups);
  } else {
    a.zero ? quantize_grouped_as<V, In, C, Quotient::fused, true>(a, groups)
           : quantize_grouped_as<V, In, C, Quotient::fused, false>(a, groups);
  }
}

// One scale per column. Zero: whether there are zero points to load.
template <class V, class In, class C, Quotient Kind, bool Zero>
struct ColumnQuantizer {
  using T = compute_t<In>;
  using I32 = typename V::I32;

  const T *scale, *inverse, *low, *limit;
  const int32_t* zero;
  I32 qmin;
  typename V::ByteShift shift;
  // Rows computed together, so that constants are loaded once for all of them: as many as registers hold.
  static constexpr int kRows = V::width >= 8 ? V::width / 4 : 1;

  LOWBIT_INLINE auto to_compute(I32 i) {
    if constexpr (sizeof(T) == 8) {
      return V::to_f64(i);
    } else {
      return V::to_f32(i);
    }
  }
  __attribute__((always_inline)) I32 steps(const In* x, int64_t i) const {
    const auto hi = V::load(limit + i);
    auto lo = hi;
    if constexpr (V::limit_needs_lo) {
      const I32 least = Zero ? V::sub(qmin, V::load_i32(zero + i)) : qmin;
      lo = V::mul(to_compute(least), V::load(scale + i));
    }
    const auto divisor = Divisor<V, T, Kind>::load(scale + i, inverse + i, low + i);
    return V::round_i32(divisor(V::limit(V::load(x + i), lo, hi)));
  }
  __attribute__((always_inline)) I32 codes(const In* x, int64_t i) const {
    if constexpr (Zero) {
      const I32 z = V::load_i32(zero + i);
      return V::add(V::max(steps(x, i), V::sub(qmin, z)), z);
    } else {
      return V::max(steps(x, i), qmin);
    }
  }

  static constexpr bool kBytes = !Zero && sizeof(C) == 1;  // ByteShift is enough

  // Four vectors of each of `Rows` rows. Loads come before stores: row strides are often a multiple of 4096 bytes, and
  // a load waits for an earlier store whose address has the same low 12 bits (4 KiB aliasing).
  template <int Rows>
  __attribute__((always_inline)) void block(const In* x, C* q, int64_t i, int64_t stride) const {
    constexpr int w = V::width;
    I32 found[Rows][4];
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k)
#pragma GCC unroll 4
      for (int r = 0; r < Rows; ++r) {
        const In* from = x + r * stride;
        found[r][k] = kBytes ? steps(from, i + k * w) : codes(from, i + k * w);
      }
#pragma GCC unroll 4
    for (int r = 0; r < Rows; ++r) {
      C* to = q + r * stride + i;
      const auto& f = found[r];
      if constexpr (kBytes) {
        V::store_bytes4(to, f[0], f[1], f[2], f[3], shift);
      } else {
        V::store_codes4(to, f[0], f[1], f[2], f[3]);
      }
    }
  }

  template <int Rows>
  void run_rows(const In* x, C* q, int64_t n, int64_t stride) const {
    constexpr int w = V::width;
    int64_t i = 0;
    for (; i + 4 * w <= n; i += 4 * w) block<Rows>(x, q, i, stride);
    for (int r = 0; r < Rows; ++r) end_of_row(x + r * stride, q + r * stride, i, n);
  }
  void run(const In* x, C* q, int64_t n, int64_t rows, int64_t stride) const {
    int64_t r = 0;
    for (; r + kRows <= rows; r += kRows) run_rows<kRows>(x + r * stride, q + r * stride, n, stride);
    for (; r < rows; ++r) run_rows<1>(x + r * stride, q + r * stride, n, stride);
  }

  // The tail of a row, less than four vectors.
  void end_of_row(const In* x, C* q, int64_t i, int64_t n) const {
    constexpr int w = V::width;
    for (; i + w <= n; i += w) V::store_codes(q + i, codes(x, i));
    if (w == 1 || i >= n) return;
    if (n >= w) {
      V::store_codes(q + n - w, codes(x, n - w));
    } else {
      short_run(x, q, n);
    }
  }

  // Fewer than a vector: in padded copies.
  void short_run(const In* x, C* q, int64_t n) const {
    constexpr int w = V::width;
    In in[w] = {};
    T s[w], inv[w], lo[w], hi[w];
    int32_t z[w] = {};
    C out[w];
    for (int k = 0; k < w; ++k) {
      const int64_t at = k < n ? k : 0;
      s[k] = scale[at], inv[k] = inverse[at], lo[k] = low[at], hi[k] = limit[at];
      if (Zero) z[k] = zero[at];
    }
    std::memcpy(in, x, n * sizeof(In));
    V::store_codes(out, ColumnQuantizer{s, inv, lo, hi, z, qmin, shift}.codes(in, 0));
    std::memcpy(q, out, n * sizeof(C));
  }
};

template <class V, class In, class C, Quotient Kind, bool Zero>
void quantize_columns_as(const QuantizeArgs& a) {
  using T = compute_t<In>;
  if (a.n == 0) return;
  const ColumnQuantizer<V, In, C, Kind, Zero> k{static_cast<const T*>(a.scale),
                                                static_cast<const T*>(a.inverse),
                                                static_cast<const T*>(a.low),
                                                static_cast<const T*>(a.limit),
                                                a.zero,
                                                V::set_i32(a.qmin),
                                                typename V::ByteShift(0, a.qmin)};
  k.run(static_cast<const In*>(a.x), static_cast<C*>(a.q), a.n, a.rows, a.stride);
}

template <class V, class In, class C>
void quantize_columns(const QuantizeArgs& a) {
  if (a.divide || sizeof(C) != 1) {
    a.zero ? quantize_columns_as<V, In, C, Quotient::division, true>(a)
           : quantize_columns_as<V, In, C, Quotient::division, false>(a);
  } else {
    a.zero ? quantize_columns_as<V, In, C, Quotient::fused, true>(a)
           : quantize_columns_as<V, In, C, Quotient::fused, false>(a);
  }
}

template <class V, class In>
bool prepare_columns(const QuantizeArgs& a, void* inverse, void* low, void* limit) {
  using T = compute_t<In>;
  const T* scale = static_cast<const T*>(a.scale);
  T *inv = static_cast<T*>(inverse), *lo = static_cast<T*>(low), *hi = static_cast<T*>(limit);
  bool divide = false;
  for (int64_t i = 0; i < a.n; ++i) {
    const Reciprocal<T> r = reciprocal(scale[i]);
    inv[i] = r.inv, lo[i] = r.low;
    divide |= scale[i] > static_cast<T>(kMaxQuotientScale);
  }
  if (a.zero) {
    for (int64_t i = 0; i < a.n; ++i) hi[i] = static_cast<T>(a.qmax - a.zero[i]) * scale[i];
  } else {
    for (int64_t i = 0; i < a.n; ++i) hi[i] = static_cast<T>(a.qmax) * scale[i];
  }
  return divide;
}

template <class V, class In>
void quantize_sign(const QuantizeArgs& a) {
  constexpr int w = V::width;
  const In* x = static_cast<const In*>(a.x);
  uint8_t* q = static_cast<uint8_t*>(a.q);
  const auto bits = [&](int64_t i) __attribute__((always_inline)) { return V::positive(V::load(x + i)); };
  int64_t i = 0;
  for (; i + 4 * w <= a.n; i += 4 * w) V::store_codes4(q + i, bits(i), bits(i + w), bits(i + 2 * w), bits(i + 3 * w));
  for (; i < a.n; ++i) q[i] = widen(x[i]) > 0;
}

template <class V, class In>
void quantize_sign_columns(const QuantizeArgs& a) {
  QuantizeArgs row = a;
  for (int64_t r = 0; r < a.rows; ++r) {
    row.x = static_cast<const In*>(a.x) + r * a.stride, row.q = static_cast<uint8_t*>(a.q) + r * a.stride;
    quantize_sign<V, In>(row);
  }
}

}  // namespace lowbit
