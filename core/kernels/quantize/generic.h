// The algorithm once, for every vector width and element type.
#pragma once
#include "kernels/quantize/quantize.h"
#include "simd/vec.h"

namespace lowbit {

struct SignBit {};  // tag: the b1 rows

// Eight-bit codes can use the multiply-speed quotient; sixteen-bit ones exceed its proven range.
template <class C>
constexpr bool kQuotientProven = sizeof(C) == 1;

template <class V, class In, class C, bool Divide>
struct UniformQuantizer {
  using T = compute_t<In>;
  using F = decltype(V::set(T{}));

  F scale, inverse, lo, hi;
  typename V::I32 zero, least;  // least: qmin - z
  typename V::ByteShift shift;

  UniformQuantizer(T s, int32_t z, int32_t qmin, int32_t qmax)
      : scale(V::set(s)),
        inverse(V::set(T{1} / s)),
        lo(V::set(static_cast<T>(qmin - z) * s)),
        hi(V::set(static_cast<T>(qmax - z) * s)),
        zero(V::set_i32(z)),
        least(V::set_i32(qmin - z)),
        shift(z, qmin) {}

  // rne(x / s), not above qmax - z, not yet clamped below.
  __attribute__((always_inline)) typename V::I32 steps(const In* p) const {
    const F x = V::limit(V::load(p), lo, hi);
    return V::round_i32(Divide ? V::divide(x, scale) : V::quotient(x, scale, inverse));
  }
  __attribute__((always_inline)) typename V::I32 codes(const In* p) const {
    return V::add(V::max(steps(p), least), zero);
  }

  template <bool Stream>
  __attribute__((always_inline)) void block(const In* x, C* q) const {
    constexpr int w = V::width;
    if constexpr (sizeof(C) == 1) {
      V::template store_bytes4<Stream>(q, steps(x), steps(x + w), steps(x + 2 * w), steps(x + 3 * w), shift);
    } else {
      V::template store_codes4<Stream>(q, codes(x), codes(x + w), codes(x + 2 * w), codes(x + 3 * w));
    }
  }

  __attribute__((always_inline)) void run(const In* x, C* q, int64_t n) const {
    constexpr int w = V::width;
    int64_t i = 0;
    for (; i + 4 * w <= n; i += 4 * w) block<false>(x + i, q + i);
    for (; i + w <= n; i += w) V::store_codes(q + i, codes(x + i));
    if (w == 1 || i >= n) return;
    if (n >= w) {  // the last vector overlaps what is already done
      V::store_codes(q + n - w, codes(x + n - w));
    } else {
      In in[w] = {};
      C out[w];
      std::memcpy(in, x + i, (n - i) * sizeof(In));
      V::store_codes(out, codes(in));
      std::memcpy(q + i, out, (n - i) * sizeof(C));
    }
  }

  void run_streaming(const In* x, C* q, int64_t n) const {
    constexpr int64_t step = 4 * V::width;
    constexpr uintptr_t align = 64;
    int64_t head = static_cast<int64_t>((-reinterpret_cast<uintptr_t>(q) & (align - 1)) / sizeof(C));
    if (head > n) head = n;
    run(x, q, head);
    int64_t i = head;
    for (; i + step <= n; i += step) block<true>(x + i, q + i);
    run(x + i, q + i, n - i);
  }
};

template <class V, class In, class C, bool Divide>
void quantize_uniform_as(const QuantizeArgs& a, compute_t<In> s, int32_t z) {
  const UniformQuantizer<V, In, C, Divide> k(s, z, a.qmin, a.qmax);
  const In* x = static_cast<const In*>(a.x);
  C* q = static_cast<C*>(a.q);
  if (a.stream) {
    k.run_streaming(x, q, a.n);
  } else {
    k.run(x, q, a.n);
  }
}

template <class V, class In, class C>
void quantize_uniform(const QuantizeArgs& a) {
  const auto s = *static_cast<const compute_t<In>*>(a.scale);
  const int32_t z = a.zero ? *a.zero : 0;
  if (kQuotientProven<C> && s >= kMinQuotientScale) {
    quantize_uniform_as<V, In, C, false>(a, s, z);
  } else {
    quantize_uniform_as<V, In, C, true>(a, s, z);
  }
}

template <class V, class In, class C>
void quantize_grouped(const QuantizeArgs& a) {
  const auto* scale = static_cast<const compute_t<In>*>(a.scale);
  const In* x = static_cast<const In*>(a.x);
  C* q = static_cast<C*>(a.q);
  for (int64_t i = 0, g = 0; i < a.n; i += a.group, ++g) {
    const auto s = scale[g];
    const int32_t z = a.zero ? a.zero[g] : 0;
    if (kQuotientProven<C> && s >= kMinQuotientScale) {
      UniformQuantizer<V, In, C, false>(s, z, a.qmin, a.qmax).run(x + i, q + i, a.group);
    } else {
      UniformQuantizer<V, In, C, true>(s, z, a.qmin, a.qmax).run(x + i, q + i, a.group);
    }
  }
}

template <class V, class In, class C, bool Divide>
struct VaryingQuantizer {
  using T = compute_t<In>;
  using I32 = typename V::I32;

  I32 qmin, qmax;

  LOWBIT_INLINE auto to_compute(I32 i) {
    if constexpr (sizeof(T) == 8) {
      return V::to_f64(i);
    } else {
      return V::to_f32(i);
    }
  }
  __attribute__((always_inline)) I32 codes(const In* x, const T* s, const T* inv, const int32_t* z) const {
    const auto scale = V::load(s);
    const I32 zero = z ? V::load_i32(z) : V::set_i32(0);
    const auto lo = V::mul(to_compute(V::sub(qmin, zero)), scale);
    const auto hi = V::mul(to_compute(V::sub(qmax, zero)), scale);
    const auto y = V::limit(V::load(x), lo, hi);
    const I32 steps = V::round_i32(Divide ? V::divide(y, scale) : V::quotient(y, scale, V::load(inv)));
    return V::add(V::max(steps, V::sub(qmin, zero)), zero);
  }

  void run(const In* x, C* q, int64_t n, const T* s, const T* inv, const int32_t* z) const {
    constexpr int w = V::width;
    const auto at = [&](int64_t i)
                        __attribute__((always_inline)) { return codes(x + i, s + i, inv + i, z ? z + i : nullptr); };
    int64_t i = 0;
    for (; i + 4 * w <= n; i += 4 * w)
      V::template store_codes4<false>(q + i, at(i), at(i + w), at(i + 2 * w), at(i + 3 * w));
    for (; i + w <= n; i += w) V::store_codes(q + i, at(i));
    if (w == 1 || i >= n) return;
    if (n >= w) {
      V::store_codes(q + n - w, at(n - w));
    } else {
      const int64_t rest = n - i;
      In in[w] = {};
      T scale[w], inverse[w];
      int32_t zero[w] = {};
      C out[w];
      for (int k = 0; k < w; ++k) scale[k] = inverse[k] = 1;
      std::memcpy(in, x + i, rest * sizeof(In));
      std::memcpy(scale, s + i, rest * sizeof(T));
      std::memcpy(inverse, inv + i, rest * sizeof(T));
      if (z) std::memcpy(zero, z + i, rest * sizeof(int32_t));
      V::store_codes(out, codes(in, scale, inverse, zero));
      std::memcpy(q + i, out, rest * sizeof(C));
    }
  }
};

template <class V, class In, class C>
void quantize_varying(const QuantizeArgs& a) {
  using T = compute_t<In>;
  const In* x = static_cast<const In*>(a.x);
  C* q = static_cast<C*>(a.q);
  const T* s = static_cast<const T*>(a.scale);
  const T* inv = static_cast<const T*>(a.inverse);
  if (kQuotientProven<C> && !a.divide) {
    VaryingQuantizer<V, In, C, false>{V::set_i32(a.qmin), V::set_i32(a.qmax)}.run(x, q, a.n, s, inv, a.zero);
  } else {
    VaryingQuantizer<V, In, C, true>{V::set_i32(a.qmin), V::set_i32(a.qmax)}.run(x, q, a.n, s, inv, a.zero);
  }
}

// x > 0, as an integer comparison of the bits: positive numbers lie in (0, bits of +Inf].
LOWBIT_INLINE int32_t signed_bits(const float* p) {
  int32_t b;
  std::memcpy(&b, p, 4);
  return b;
}
LOWBIT_INLINE int64_t signed_bits(const double* p) {
  int64_t b;
  std::memcpy(&b, p, 8);
  return b;
}
LOWBIT_INLINE int16_t signed_bits(const half_t* p) { return static_cast<int16_t>(p->bits); }
LOWBIT_INLINE int16_t signed_bits(const bfloat_t* p) { return static_cast<int16_t>(p->bits); }
LOWBIT_INLINE int32_t infinity_bits(const float*) { return 0x7f800000; }
LOWBIT_INLINE int64_t infinity_bits(const double*) { return 0x7ff0000000000000; }
LOWBIT_INLINE int16_t infinity_bits(const half_t*) { return 0x7c00; }
LOWBIT_INLINE int16_t infinity_bits(const bfloat_t*) { return 0x7f80; }

template <class V, class In>
void quantize_sign(const QuantizeArgs& a) {
  const In* x = static_cast<const In*>(a.x);
  uint8_t* q = static_cast<uint8_t*>(a.q);
  for (int64_t i = 0; i < a.n; ++i) {
    const auto b = signed_bits(x + i);
    q[i] = static_cast<uint8_t>((b > 0) & (b <= infinity_bits(x)));
  }
}

template <class V, class In, class C>
struct QuantizeEntry {
  static constexpr QuantizeFn uniform = quantize_uniform<V, In, C>;
  static constexpr QuantizeFn grouped = quantize_grouped<V, In, C>;
  static constexpr QuantizeFn varying = quantize_varying<V, In, C>;
};
template <class V, class In>
struct QuantizeEntry<V, In, SignBit> {
  static constexpr QuantizeFn uniform = quantize_sign<V, In>;
  static constexpr QuantizeFn grouped = quantize_sign<V, In>;
  static constexpr QuantizeFn varying = quantize_sign<V, In>;
};

template <class V>
struct QuantizeRows {
  static constexpr QuantizeRow rows[kQuantizeRows] = {
#define ROW(e, c, In, C)                                                                    \
  {Element::e, Code::c, QuantizeEntry<V, In, C>::uniform, QuantizeEntry<V, In, C>::grouped, \
   QuantizeEntry<V, In, C>::varying},
#include "kernels/quantize/kernels.inc"
#undef ROW
  };
};

}  // namespace lowbit
