// Halves under one scale have at most 256 results, so that each is looked up instead of computed and narrowed:
//
//   y = table[lowest byte of min(max(x, least), most) * (1 / s) + 1.5 * 2^23]
//
// Adding 1.5 * 2^23 rounds to an integer, whose lowest byte tells the steps of [qmin - z, qmax - z] apart. Product and
// sum are one operation where that gives every half its step. x is bounded as 16 bits by the last numbers that are not
// clipped, where those are the first and last step: bfloats are so sparse that some steps have none, and are bounded as
// floats then. What a vector type must have: simd/x86_vec512.h.
#pragma once
#include "kernels/fake_quant/generic.h"

namespace lowbit {

template <class In>
constexpr uint16_t kInfinity = 0x7c00;
template <>
inline constexpr uint16_t kInfinity<bfloat_t> = 0x7f80;

template <class In>
struct StepTable {
  float scale = 0, inv = 0;  // inv 0: no multiplier stands in for the division
  int32_t lo = 0, hi = 0;    // in steps
  UnclippedBits<In> bounds{};
  bool bounds_are_steps = false;  // the first and the last
  bool fuses = false;
  alignas(64) uint8_t low[256], high[256];  // of y, by the lowest byte of the step

  void make(float s, int32_t first, int32_t last) {
    scale = s, lo = first, hi = last;
    const int reach = 1 + (hi > -lo ? hi : -lo);
    inv = s > kMaxQuotientScale ? 0 : found_inverse<In, Rounding::by_addition>(s, reach);
    fuses = inv != 0;
    if (!fuses && s <= kMaxQuotientScale) inv = found_inverse<In, Rounding::of_product>(s, reach);
    if (inv == 0) return;
    bounds = UnclippedBits<In>::of(s, lo, hi);
    const In most{static_cast<uint16_t>(bounds.most)}, least{bounds.least};
    bounds_are_steps = __builtin_rintf(widen(most) / s) == static_cast<float>(hi) &&
                       __builtin_rintf(widen(least) / s) == static_cast<float>(lo);
    for (int32_t k = lo; k <= hi; ++k) {
      In y;
      narrow(&y, static_cast<float>(k) * s);
      low[k & 255] = static_cast<uint8_t>(y.bits), high[k & 255] = static_cast<uint8_t>(y.bits >> 8);
    }
  }
};

// The table for one scale, if it is worth making. A thread remembers its last one: it asks again for each piece of a
// tensor.
template <class In>
static const StepTable<In>* step_table(const FakeQuantArgs& a) {
  static thread_local StepTable<In> known;
  const float s = *static_cast<const float*>(a.scale);
  const int32_t lo = a.qmin - *a.zero, hi = a.qmax - *a.zero;
  if (a.n != a.group || hi - lo > 255) return nullptr;
  if (s != known.scale || lo != known.lo || hi != known.hi) {
    if (a.n < kWorthAnInverse) return nullptr;
    known.make(s, lo, hi);
  }
  return known.inv == 0 ? nullptr : &known;
}

template <class V, class In, bool Masked, bool FloatBounds, bool Fuses>
struct TableStep {
  using Bits = typename V::Bits16;
  static constexpr int kWords = 2 * V::width, kBlock = 4 * kWords;  // all read before any is written, as elsewhere

  typename V::Words words;
  typename V::F32 inv, lo, hi;
  Bits most, least;

  explicit TableStep(const StepTable<In>& t)
      : words(t.low, t.high),
        inv(V::set(t.inv * V::unwidened(In{}))),
        lo(V::set(static_cast<float>(t.lo) * t.scale)),
        hi(V::set(static_cast<float>(t.hi) * t.scale)),
        most(V::set_bits16(static_cast<uint16_t>(t.bounds.most))),
        least(V::set_bits16(t.bounds.least)) {}

  __attribute__((always_inline)) void block(const In* x, In* y, uint8_t* bits) const {
    Bits v[4];
    for (int k = 0; k < 4; ++k) v[k] = V::load_bits16(x + k * kWords);
    // Most blocks have nothing to bound, and no NaN, which lies beyond the bounds, too.
    const Bits positive = V::max_i16(V::max_i16(v[0], v[1]), V::max_i16(v[2], v[3]));
    const Bits negative = V::max_u16(V::max_u16(v[0], v[1]), V::max_u16(v[2], v[3]));
    if (V::any_above(positive, most, negative, least)) [[unlikely]] {
      results<true>(v, y, bits);
    } else {
      results<false>(v, y, bits);
    }
  }
  template <bool Clipped>
  __attribute__((always_inline)) void results(const Bits (&v)[4], In* y, uint8_t* bits) const {
    Bits b[4];
    for (int k = 0; k < 4; ++k) b[k] = Clipped ? V::min_u16(V::min_i16(v[k], most), least) : v[k];
    for (int k = 0; k < 4; k += 2) {
      auto found = V::look_up(words, steps<Clipped>(v[k], b[k]), steps<Clipped>(v[k + 1], b[k + 1]));
      if constexpr (Clipped)
        found = {V::keep_nans(v[k], found.a, kInfinity<In>), V::keep_nans(v[k + 1], found.b, kInfinity<In>)};
      V::store_bits16(y + k * kWords, found.a);
      V::store_bits16(y + (k + 1) * kWords, found.b);
    }
    if constexpr (Masked) {
      uint32_t same[4];
      for (int k = 0; k < 4; ++k) same[k] = Clipped ? V::equal_bits16(v[k], b[k]) : ~uint32_t{0};
      std::memcpy(bits, same, sizeof(same));
    }
  }
  void run(const In* x, In* y, uint8_t* bits, int64_t n) const {
    const TableStep step = *this;  // in registers: what is stored might change *this, for all a compiler knows
    const int64_t i = each_block<kBlock>(n, is_better_backwards(y, x), [&](int64_t k) __attribute__((always_inline)) {
      step.block(x + k, y + k, bits + k / 8);
    });
    if (i == n) return;
    In in[kBlock] = {}, out[kBlock];
    uint8_t last[kBlock / 8];
    std::memcpy(in, x + i, (n - i) * sizeof(In));
    block(in, out, last);
    std::memcpy(y + i, out, (n - i) * sizeof(In));
    if constexpr (Masked) {
      if (n % 8 != 0) last[(n - i) / 8] &= static_cast<uint8_t>((1 << n % 8) - 1);
      std::memcpy(bits + i / 8, last, (n - i + 7) / 8);
    }
  }

 private:
  // The lowest byte of each lane is that of the step.
  template <bool Clipped>
  __attribute__((always_inline)) typename V::F32x2 steps(Bits v, Bits bounded) const {
    auto x = V::widened(In{}, FloatBounds ? v : bounded);
    if constexpr (FloatBounds && Clipped) x = {V::clamp(x.a, lo, hi), V::clamp(x.b, lo, hi)};
    const auto round = V::set(kRoundByAddition);
    if constexpr (Fuses) return {V::fma(x.a, inv, round), V::fma(x.b, inv, round)};
    return {V::add(V::mul(x.a, inv), round), V::add(V::mul(x.b, inv), round)};
  }
};

// Whether it could be done so.
template <class V, class In, bool Masked>
bool fake_by_table(const FakeQuantArgs& a) {
  const StepTable<In>* table = step_table<In>(a);
  if (table == nullptr || !(table->inv * V::unwidened(In{}) < __builtin_inff())) return false;
  const auto run = [&]<bool FloatBounds, bool Fuses>() {
    const TableStep<V, In, Masked, FloatBounds, Fuses> step(*table);
    step.run(static_cast<const In*>(a.x), static_cast<In*>(a.y), a.bits, a.n);
    return true;
  };
  if (table->bounds_are_steps)
    return table->fuses ? run.template operator()<false, true>() : run.template operator()<false, false>();
  if constexpr (V::unwidened(In{}) == 1)
    return table->fuses ? run.template operator()<true, true>() : run.template operator()<true, false>();
  return false;
}

}  // namespace lowbit
