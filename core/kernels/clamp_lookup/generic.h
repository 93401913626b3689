// The algorithms once, for every vector width and code type.
#pragma once
#include "kernels/clamp_lookup/clamp_lookup.h"
#include "simd/bytes.h"

namespace lowbit {

template <class B>
constexpr int kCodesBlock = 4 * B::width > 64 ? 4 * B::width : 64;

// A block is loaded before any of it is stored, because of 4 KiB aliasing: a load waits for an earlier store whose
// address has the same low 12 bits.
template <class B, class Map>
LOWBIT_INLINE void map_codes(const ClampLookupArgs& k, const Map& map) {
  constexpr int kVectors = kCodesBlock<B> / B::width;
  for_each_block<kCodesBlock<B>>(k.x, nullptr, k.q, k.n,
                                 [&](const uint8_t* x, const uint8_t*, uint8_t* q) __attribute__((always_inline)) {
                                   typename B::Bytes found[kVectors];
                                   for (int i = 0; i < kVectors; ++i) found[i] = map(B::load(x + i * B::width));
                                   for (int i = 0; i < kVectors; ++i) B::store(q + i * B::width, found[i]);
                                 });
}

template <class B, class C>
void clamp_codes(const ClampLookupArgs& k) {
  const auto lo = B::set(k.lo), hi = B::set(k.hi);
  map_codes<B>(k, [&](auto x) __attribute__((always_inline)) { return B::least(C{}, B::greatest(C{}, x, lo), hi); });
}

template <class B>
void lookup_codes(const ClampLookupArgs& k) {
  const typename B::Table table(k.table);
  map_codes<B>(k, [&](auto x) __attribute__((always_inline)) { return B::lookup(table, x); });
}

template <class B>
struct ClampLookupRows {
  static constexpr ClampLookupRow rows[] = {
#define ROW(c, C) {Code::c, clamp_codes<B, C>, lookup_codes<B>},
#include "kernels/clamp_lookup/kernels.inc"
#undef ROW
  };
};

}  // namespace lowbit
