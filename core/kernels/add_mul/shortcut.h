// The cheaper formulas of add_mul.h. The caller proves that one gives the right codes before it is used.
#pragma once
#include "kernels/add_mul/add_mul.h"
#include "simd/bytes.h"

namespace lowbit {

// How codes are converted to the s8 of the arithmetic and back. Narrowing saturates to [-128, 127].
enum class Around {
  nothing,   // all are s8, and results have the full range
  floor,     // all are s8, and qmax is 127
  flips,     // some are u8, and results have the full range
  anything,  // some are u8, or qmax is less
};

// centre: 0 for s8, 128 for u8, so that q - centre is s8.
template <class B, Around Kind>
struct Frame {
  using Bytes = typename B::Bytes;
  Bytes flip_a, flip_b, flip_q, qmin, qmax;

  Frame(const AddMulArgs& k, int centre)
      : flip_a(B::set(k.a_signed ? 0 : 0x80)),
        flip_b(B::set(k.b_signed ? 0 : 0x80)),
        flip_q(B::set(centre != 0 ? 0x80 : 0)),
        qmin(B::set(static_cast<uint8_t>(k.qmin - centre))),
        qmax(B::set(static_cast<uint8_t>(k.qmax - centre))) {}

  LOWBIT_INLINE Bytes in(const uint8_t* p, Bytes mask) {
    if constexpr (Kind == Around::nothing || Kind == Around::floor) return B::load(p);
    return B::flip(B::load(p), mask);
  }
  __attribute__((always_inline)) void out(uint8_t* p, Bytes s8) const {
    Bytes q = s8;
    if constexpr (Kind == Around::floor || Kind == Around::anything) q = B::greatest(int8_t{}, q, qmin);
    if constexpr (Kind == Around::anything) q = B::least(int8_t{}, q, qmax);
    if constexpr (Kind == Around::flips || Kind == Around::anything) q = B::flip(q, flip_q);
    B::store(p, q);
  }
};

// a * A + b * B + offset, from the lowest digit up. A plane is the sum for one digit, and carries go to the next plane.
// The floor of a sum of floors is the floor of the whole.
template <class B, int Planes, bool Offset>
struct PlanesSum {
  using Words = typename B::Words;
  static constexpr int kOffsets = Planes < AddMulShortcut::kOffsets ? Planes : AddMulShortcut::kOffsets;
  typename B::Weights weights[Planes];
  Words offset[kOffsets], by;

  explicit PlanesSum(const AddMulShortcut& s) : by(B::words(static_cast<int16_t>(1 << (15 - s.fraction)))) {
    for (int k = 0; k < Planes; ++k) weights[k] = typename B::Weights(s.a[k], s.b[k]);
    for (int k = 0; k < kOffsets; ++k) offset[k] = B::words(s.offset[k]);
  }
  template <int Plane, class Half>
  __attribute__((always_inline)) Words from(Half h) const {
    Words sum = B::dot(weights[Plane], h);
    if constexpr (Offset && Plane == 0) sum = B::add_saturating(sum, offset[0]);
    if constexpr (Offset && Plane != 0 && Plane < kOffsets) sum = B::add(sum, offset[Plane]);
    if constexpr (Plane + 1 < Planes) {
      const Words carry = B::template shift_right<AddMulShortcut::kDigit>(from<Plane + 1>(h));
      return Plane == 0 ? B::add_saturating(sum, carry) : B::add(sum, carry);
    }
    return sum;
  }
  template <class Half>
  __attribute__((always_inline)) Words rounded(Half h) const {
    return B::scale(from<0>(h), by);
  }
};

template <class B>
constexpr int kShortcutBlock = 2 * B::width > 64 ? 2 * B::width : 64;

template <class B, Around Kind, class Formula>
LOWBIT_INLINE void shortcut_blocks(const AddMulArgs& k, int centre, const Formula& formula) {
  const Frame<B, Kind> frame(k, centre);
  for_each_block<kShortcutBlock<B>>(
      static_cast<const uint8_t*>(k.a), static_cast<const uint8_t*>(k.b), static_cast<uint8_t*>(k.q), k.n,
      [&](const uint8_t* a, const uint8_t* b, uint8_t* q) __attribute__((always_inline)) {
        // Loads come before stores, as in kernels/clamp_lookup.
        constexpr int kVectors = kShortcutBlock<B> / B::width;
        typename B::Bytes found[kVectors];
        for (int i = 0; i < kVectors; ++i)
          found[i] = formula(frame.in(a + i * B::width, frame.flip_a), frame.in(b + i * B::width, frame.flip_b));
        for (int i = 0; i < kVectors; ++i) frame.out(q + i * B::width, found[i]);
      });
}

template <class B, int Planes, bool Offset, Around Kind>
void add_planes(const AddMulArgs& k, int centre) {
  const PlanesSum<B, Planes, Offset> sum(*k.shortcut);
  shortcut_blocks<B, Kind>(k, centre, [&](auto a, auto b) __attribute__((always_inline)) {
    const auto pairs = B::pair(a, b);
    return B::narrow({sum.rounded(pairs.lo), sum.rounded(pairs.hi)});
  });
}

template <class V, class B, Around Kind>
void mul_scaled(const AddMulArgs& k, int centre) {
  const auto za = B::words(static_cast<int16_t>(k.za - (k.a_signed ? 0 : 128)));
  const auto zb = B::words(static_cast<int16_t>(k.zb - (k.b_signed ? 0 : 128)));
  const auto ratio = V::set(k.shortcut->ratio), shift = V::set(k.shortcut->shift);
  const auto half = [&](auto a, auto b) __attribute__((always_inline)) {
    const auto p = B::products(B::sub(a, za), B::sub(b, zb));
    return B::narrow(V::round_i32(V::fma(p.a, ratio, shift)), V::round_i32(V::fma(p.b, ratio, shift)));
  };
  shortcut_blocks<B, Kind>(k, centre, [&](auto a, auto b) __attribute__((always_inline)) {
    const auto x = B::widen(a), y = B::widen(b);
    return B::narrow({half(x.lo, y.lo), half(x.hi, y.hi)});
  });
}

template <class B, Around Kind>
void add_shortcut(const AddMulArgs& k, int centre) {
  const int16_t* digits = k.shortcut->offset;
  const bool offset = digits[0] != 0 || digits[1] != 0 || digits[2] != 0;
  switch (k.shortcut->planes) {
    case 1:
      return offset ? add_planes<B, 1, true, Kind>(k, centre) : add_planes<B, 1, false, Kind>(k, centre);
    case 2:
      return offset ? add_planes<B, 2, true, Kind>(k, centre) : add_planes<B, 2, false, Kind>(k, centre);
    case 3:
      return offset ? add_planes<B, 3, true, Kind>(k, centre) : add_planes<B, 3, false, Kind>(k, centre);
    default:
      return offset ? add_planes<B, 4, true, Kind>(k, centre) : add_planes<B, 4, false, Kind>(k, centre);
  }
}

template <class B, Around Kind>
void add_by_table(const AddMulArgs& k, int centre) {
  using Table = typename B::Table;
  const AddMulShortcut& s = *k.shortcut;
  const Table whole_a(s.whole_a), count(s.count), whole_b(s.whole_b), place(s.place);
  const Frame<B, Kind> frame(k, centre);
  for_each_block<B::width>(
      static_cast<const uint8_t*>(k.a), static_cast<const uint8_t*>(k.b), static_cast<uint8_t*>(k.q), k.n,
      [&](const uint8_t* a, const uint8_t* b, uint8_t* q) __attribute__((always_inline)) {
        const auto x = B::load(a), y = B::load(b);
        const auto rest = B::one_more_where_less(B::lookup(whole_b, y), B::lookup(place, y), B::lookup(count, x));
        frame.out(q, B::add_saturating_bytes(B::lookup(whole_a, x), rest));
      });
}

template <class V, class B, AddMulOp Op, Around Kind>
void shortcut_as(const AddMulArgs& k, int centre) {
  if constexpr (Op == AddMulOp::mul) return mul_scaled<V, B, Kind>(k, centre);
  if constexpr (B::has_tables)
    if (k.shortcut->by_table) return add_by_table<B, Kind>(k, centre);
  return add_shortcut<B, Kind>(k, centre);
}

template <class V, class B, AddMulOp Op, class C>
void combine_shortcut(const AddMulArgs& k) {
  constexpr int centre = static_cast<C>(-1) < 0 ? 0 : 128;
  const bool is_plain = k.a_signed && k.b_signed && centre == 0, is_all = k.qmin - centre == -128;
  if (k.qmax - centre != 127 || (!is_plain && !is_all)) return shortcut_as<V, B, Op, Around::anything>(k, centre);
  if (!is_plain) return shortcut_as<V, B, Op, Around::flips>(k, centre);
  is_all ? shortcut_as<V, B, Op, Around::nothing>(k, centre) : shortcut_as<V, B, Op, Around::floor>(k, centre);
}

}  // namespace lowbit
