// What AVX2 and AVX-512 share. R has the operations that differ: Avx2 or Avx512.
#pragma once
#include "simd/bytes.h"
#include "simd/x86_vec.h"

namespace lowbit {

template <class R>
struct X86Bytes {
  static constexpr int width = 4 * R::width;
  static constexpr bool has_words = true, has_tables = false;
  using Bytes = typename R::I32;
  using Words = typename R::I32;
  using U16 = typename R::U16;

  LOWBIT_INLINE Bytes load(const uint8_t* p) { return R::load_bytes(p); }
  LOWBIT_INLINE void store(uint8_t* p, Bytes x) { R::store_bytes(p, x); }
  LOWBIT_INLINE Bytes set(uint8_t b) { return R::set8(b); }
  LOWBIT_INLINE Bytes flip(Bytes x, Bytes mask) { return x ^ mask; }
  template <class Code>
  LOWBIT_INLINE Bytes greatest(Code, Bytes x, Bytes y) {
    return R::max8(Code{}, x, y);
  }
  template <class Code>
  LOWBIT_INLINE Bytes least(Code, Bytes x, Bytes y) {
    return R::min8(Code{}, x, y);
  }

  // Sixteen lookups of sixteen bytes. A lookup gives 0 where the index is negative, so that subtracting 16 from the
  // index before each lookup combines parts until it passes zero; a part is stored as its xor with the one before.
  struct Table {
    Bytes part[16];
    explicit Table(const uint8_t* p) {
      for (int k = 0; k < 16; ++k) {
        const __m128i here = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 16 * k));
        const __m128i before = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 16 * (k > 0 ? k - 1 : 0)));
        part[k] = R::repeat128(k % 8 == 0 ? here : here ^ before);
      }
    }
  };
  LOWBIT_INLINE Bytes lookup(const Table& t, Bytes x) {
    const Bytes step = set(16);
    Bytes found = {};
    for (int half = 0; half < 2; ++half) {
      Bytes index = half == 0 ? x : x ^ set(0x80);
      for (int k = 8 * half; k < 8 * half + 8; ++k) {
        found ^= R::look_up8(t.part[k], index);
        index = R::subtract_saturating8(index, step);
      }
    }
    return found;
  }

  struct WordPair {
    Words lo, hi;
  };
  using Pairs = WordPair;
  LOWBIT_INLINE WordPair widen(Bytes x) { return pair(x, R::negative8(x)); }
  LOWBIT_INLINE Bytes narrow(WordPair w) { return R::pack8(int8_t{}, w.lo, w.hi); }
  LOWBIT_INLINE Pairs pair(Bytes x, Bytes y) { return {R::lower8(x, y), R::upper8(x, y)}; }
  struct Weights {
    Words both = {};
    Weights() = default;
    Weights(int wx, int wy) : both(R::set16(wx | (wy << 8))) {}
  };
  LOWBIT_INLINE Words dot(const Weights& w, Words pairs) { return R::add_products8(w.both, pairs); }
  LOWBIT_INLINE Words words(int16_t i) { return R::set16(i); }
  LOWBIT_INLINE Words add(Words v, Words w) { return (Words)((U16)v + (U16)w); }
  LOWBIT_INLINE Words add_saturating(Words v, Words w) { return R::add_saturating16(v, w); }
  LOWBIT_INLINE Words sub(Words v, Words w) { return (Words)((U16)v - (U16)w); }
  template <int N>
  LOWBIT_INLINE Words shift_right(Words w) {
    return (Words)((typename R::S16)w >> N);
  }
  LOWBIT_INLINE Words scale(Words w, Words by) { return R::scale16(w, by); }

  struct Floats {
    typename R::F32 a, b;
  };
  LOWBIT_INLINE Floats products(Words v, Words w) {
    const Words lo = (Words)((U16)v * (U16)w), hi = R::high_product16(v, w);
    return {R::to_f32(R::lower16(lo, hi)), R::to_f32(R::upper16(lo, hi))};
  }
  LOWBIT_INLINE Words narrow(Words i, Words j) { return R::pack16(int16_t{}, i, j); }
};

}  // namespace lowbit
