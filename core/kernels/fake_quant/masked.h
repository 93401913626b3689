// Fake quantization with a mask of the elements that were not clipped, and the gradient that needs only the mask.
#pragma once
#include <cmath>
#include <limits>

#include "kernels/fake_quant/generic.h"

namespace lowbit {

constexpr int kMaskBlock = 32;  // elements per word of the mask

// The greatest x with rne(x / s) <= k, for k >= 0 and a quotient well inside the range of T.
template <class T>
static T last_inside(T s, T k) {
  T x = (k + T{0.5}) * s;  // correct to a few units in the last place
  while (__builtin_rint(static_cast<double>(x / s)) > static_cast<double>(k)) x = std::nextafter(x, T{0});
  for (;;) {
    const T next = std::nextafter(x, std::numeric_limits<T>::infinity());
    if (__builtin_rint(static_cast<double>(next / s)) > static_cast<double>(k)) return x;
    x = next;
  }
}

template <class V, class In, Quotient Kind, PairRounding Rounding = PairRounding::any>
struct MaskedStep {
  using T = compute_t<In>;
  using F = decltype(V::set(T{}));
  using Step = FakeStep<V, T, FakeOp::fake, Kind>;
  Step step;

  static MaskedStep of(T s, int32_t z, int32_t qmin, int32_t qmax) {
    Step step = Step::of(s, z, qmin, qmax);
    if constexpr (Step::kClampsFirst) {
      // Clamping x to the last values that are not clipped changes exactly the clipped ones.
      step.least = V::set(-last_inside(s, static_cast<T>(z - qmin)));
      step.most = V::set(last_inside(s, static_cast<T>(qmax - z)));
    }
    return {step};
  }
  // The clamped quantity, before and after the clamp: equal where nothing is clipped.
  struct Ends {
    F before, after;
  };
  __attribute__((always_inline)) Ends clamped(F x) const {
    if constexpr (Step::kClampsFirst) return {x, V::clamp(x, step.least, step.most)};
    const F steps = V::round(step.divisor(x));
    return {steps, V::clamp(steps, step.lo, step.hi)};
  }
  __attribute__((always_inline)) F number(F after) const {
    return step.numbers(Step::kClampsFirst ? V::round(step.divisor(after)) : after);
  }
  template <bool Stream>
  __attribute__((always_inline)) uint32_t block(const In* x, In* y) const {
    uint32_t bits = 0;
    if constexpr (Operands<V, In, FakeOp::fake>::kPairs) {
#pragma GCC unroll 32
      for (int k = 0; k < kMaskBlock; k += 2 * V::width) {
        const auto v = V::load_pair(x + k);
        const Ends a = clamped(v.a), b = clamped(v.b);
        V::template store_pair<Rounding>(y + k, {number(a.after), number(b.after)});
        bits |= V::equal_bits({a.before, b.before}, {a.after, b.after}) << k;
      }
    } else {
#pragma GCC unroll 32
      for (int k = 0; k < kMaskBlock; k += V::width) {
        const Ends a = clamped(V::load(x + k));
        if constexpr (Stream) {
          V::stream(y + k, number(a.after));
        } else {
          V::store_number(y + k, number(a.after));
        }
        bits |= V::equal_bits(a.before, a.after) << k;
      }
    }
    return bits;
  }
  template <bool Stream>
  void run(const In* x, In* y, uint8_t* bits, int64_t n) const {
    int64_t i = 0;
    for (; i + kMaskBlock <= n; i += kMaskBlock) {
      const uint32_t found = block<Stream>(x + i, y + i);
      std::memcpy(bits + i / 8, &found, 4);
    }
    if (i == n) return;
    In a[kMaskBlock] = {}, out[kMaskBlock];
    std::memcpy(a, x + i, (n - i) * sizeof(In));
    const uint32_t found = block<false>(a, out) & ((uint32_t{1} << (n - i)) - 1);
    std::memcpy(y + i, out, (n - i) * sizeof(In));
    std::memcpy(bits + i / 8, &found, (n - i + 7) / 8);
  }
};

template <class V, class In, Quotient Kind, PairRounding Rounding = PairRounding::any>
void fake_masked_as(const FakeQuantArgs& a) {
  const auto* scale = static_cast<const compute_t<In>*>(a.scale);
  const In* x = static_cast<const In*>(a.x);
  In* y = static_cast<In*>(a.y);
  uint8_t* bits = a.bits;
  constexpr bool kStreams = Operands<V, In, FakeOp::fake>::kStreams;
  const bool stream =
      kStreams && a.stream && reinterpret_cast<uintptr_t>(y) % (V::width * sizeof(In)) == 0 && a.group % V::width == 0;
  for (int64_t g = 0; g * a.group < a.n; ++g, x += a.group, y += a.group, bits += a.group / 8) {
    const auto step = MaskedStep<V, In, Kind, Rounding>::of(scale[g], a.zero[g], a.qmin, a.qmax);
    if constexpr (kStreams) {
      if (stream) {
        step.template run<true>(x, y, bits, a.group);
        continue;
      }
    }
    step.template run<false>(x, y, bits, a.group);
  }
}

template <class V, class In>
void fake_masked(const FakeQuantArgs& a) {
  constexpr int64_t kWorthwhile = 512;  // elements of a group that are worth a search for last_inside
  if (a.group < kWorthwhile || !may_fuse<V, In>(a, a.group ? a.n / a.group : 0))
    return fake_masked_as<V, In, Quotient::division>(a);
  if constexpr (Operands<V, In, FakeOp::fake>::kPairs)
    if (rounds_without_ties<V, In>(a)) return fake_masked_as<V, In, Quotient::fused, PairRounding::no_ties>(a);
  fake_masked_as<V, In, Quotient::fused>(a);
}

// y = dy where a bit is set, else 0. Word: an unsigned integer as wide as an element.
template <class Word>
static void keep_where(const void* dy, const uint8_t* bits, void* y, int64_t n) {
  constexpr int w = 8 * sizeof(Word), lanes = 32 / sizeof(Word);
  typedef Word Vector __attribute__((vector_size(32)));
  Vector places[w / lanes];  // one bit per element of a word
  for (int k = 0; k < w; ++k) places[k / lanes][k % lanes] = static_cast<Word>(Word{1} << k);
  const Word* from = static_cast<const Word*>(dy);
  Word* to = static_cast<Word*>(y);
  int64_t i = 0;
  for (; i + w <= n; i += w) {
    Word set;
    std::memcpy(&set, bits + i / 8, sizeof(Word));
    for (int k = 0; k < w; k += lanes) {
      Vector v;
      std::memcpy(&v, from + i + k, sizeof(v));
      v &= (Vector)((places[k / lanes] & set) == places[k / lanes]);
      std::memcpy(to + i + k, &v, sizeof(v));
    }
  }
  for (; i < n; ++i) to[i] = bits[i / 8] >> (i % 8) & 1 ? from[i] : Word{0};
}

}  // namespace lowbit
