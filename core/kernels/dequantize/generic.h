// The algorithm once, for every vector width and element type.
#pragma once
#include <type_traits>

#include "kernels/dequantize/dequantize.h"
#include "simd/vec.h"

namespace lowbit {

struct SignCode {  // one byte, 0 or 1
  uint8_t bit;
};

template <class V, class C, class Out>
struct Dequantizer {
  using T = compute_t<Out>;
  using I32 = typename V::I32;

  LOWBIT_INLINE I32 difference(const C* q, I32 zero) {
    if constexpr (std::is_same_v<C, SignCode>) {
      const I32 bit = V::load_codes(&q->bit);
      return V::sub(V::add(bit, bit), V::set_i32(1));
    } else {
      return V::sub(V::load_codes(q), zero);
    }
  }
  template <class F>
  LOWBIT_INLINE void step(const C* q, Out* y, F scale, I32 zero) {
    const I32 d = difference(q, zero);
    if constexpr (sizeof(T) == 8) {
      V::store_number(y, V::mul(V::to_f64(d), scale));
    } else {
      V::store_number(y, V::mul(V::to_f32(d), scale));
    }
  }

  // Fewer codes than a vector has.
  template <class F>
  LOWBIT_INLINE void few(const C* q, Out* y, int64_t n, F scale, I32 zero) {
    C in[V::width] = {};
    Out out[V::width];
    std::memcpy(in, q, n * sizeof(C));
    step(in, out, scale, zero);
    std::memcpy(y, out, n * sizeof(Out));
  }

  LOWBIT_INLINE void run(const C* q, Out* y, int64_t n, T s, int32_t z) {
    constexpr int w = V::width;
    const auto scale = V::set(s);
    const I32 zero = V::set_i32(z);
    int64_t i = 0;
    for (; i + 4 * w <= n; i += 4 * w) {
      step(q + i, y + i, scale, zero);
      step(q + i + w, y + i + w, scale, zero);
      step(q + i + 2 * w, y + i + 2 * w, scale, zero);
      step(q + i + 3 * w, y + i + 3 * w, scale, zero);
    }
    for (; i + w <= n; i += w) step(q + i, y + i, scale, zero);
    if (w == 1 || i >= n) return;
    if (n >= w) {  // the last vector overlaps what is already done
      step(q + n - w, y + n - w, scale, zero);
    } else {
      few(q + i, y + i, n - i, scale, zero);
    }
  }

  LOWBIT_INLINE void run_varying(const C* q, Out* y, int64_t n, const T* s, const int32_t* z) {
    constexpr int w = V::width;
    const I32 none = V::set_i32(0);
    const auto at = [&](int64_t i) __attribute__((always_inline)) {
      step(q + i, y + i, V::load(s + i), z ? V::load_i32(z + i) : none);
    };
    int64_t i = 0;
    for (; i + w <= n; i += w) at(i);
    if (w == 1 || i >= n) return;
    if (n >= w) {
      at(n - w);
    } else {
      const int64_t rest = n - i;
      T scale[w] = {};
      int32_t zero[w] = {};
      std::memcpy(scale, s + i, rest * sizeof(T));
      if (z) std::memcpy(zero, z + i, rest * sizeof(int32_t));
      few(q + i, y + i, rest, V::load(scale), V::load_i32(zero));
    }
  }
};

template <class V, class C, class Out>
void dequantize_grouped(const DequantizeArgs& a) {
  const auto* scale = static_cast<const compute_t<Out>*>(a.scale);
  for (int64_t i = 0, g = 0; i < a.n; i += a.group, ++g)
    Dequantizer<V, C, Out>::run(static_cast<const C*>(a.q) + i, static_cast<Out*>(a.y) + i, a.group, scale[g],
                                a.zero ? a.zero[g] : 0);
}

template <class V, class C, class Out>
void dequantize_varying(const DequantizeArgs& a) {
  Dequantizer<V, C, Out>::run_varying(static_cast<const C*>(a.q), static_cast<Out*>(a.y), a.n,
                                      static_cast<const compute_t<Out>*>(a.scale), a.zero);
}

template <class V>
struct DequantizeRows {
  static constexpr DequantizeRow rows[] = {
#define ROW(c, e, C, Out) {Code::c, Element::e, dequantize_grouped<V, C, Out>, dequantize_varying<V, C, Out>},
#include "kernels/dequantize/kernels.inc"
#undef ROW
  };
};

}  // namespace lowbit
