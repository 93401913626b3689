// The algorithm once, for every vector width.
#pragma once
#include <climits>

#include "kernels/sketch/sketch.h"
#include "simd/vec.h"

namespace lowbit {

LOWBIT_INLINE uint64_t mix64(uint64_t h) {
  h = (h ^ (h >> 32)) * 0x9e3779b97f4a7c15ull;
  return (h ^ (h >> 29)) * 0xbf58476d1ce4e5b9ull;
}

template <class V>
struct Binner {
  using I32 = typename V::I32;
  static constexpr int kTogether = static_cast<int>(kHashLanes);
  const CountArgs& a;
  I32 first, last, zero, negative;
  explicit Binner(const CountArgs& args)
      : a(args),
        first(V::set_i32(args.first)),
        last(V::set_i32(args.last)),
        zero(V::set_i32(0)),
        negative(V::set_i32(args.negative)) {}
  // The bins of V::width numbers, of which these are the bits and the bits of |x|.
  LOWBIT_INLINE I32 of(const Binner& b, I32 bits, I32 magnitude) {
    const I32 bin = V::sub(V::shift_right(magnitude, b.a.shift), b.first);
    return V::add(V::min(V::max(bin, b.zero), b.last), V::where_negative(bits, b.negative));
  }
  LOWBIT_INLINE void add(const Binner& b, const int32_t* at) {
    uint64_t* bins = b.a.bins;
    const uint64_t by = b.a.by;
#pragma GCC unroll 8
    for (int j = 0; j < kTogether; j += 2) {  // two per load: loads and stores are the bottleneck
      const uint64_t two = load_as<uint64_t>(at + j);
      bins[static_cast<uint32_t>(two)] += by, bins[two >> 32] += by;
    }
  }
  LOWBIT_INLINE void add_one(const Binner& b, uint32_t bits) {
    const int32_t bin = static_cast<int32_t>((bits & 0x7fffffffu) >> b.a.shift) - b.a.first;
    const int32_t within = bin < 0 ? 0 : bin > b.a.last ? b.a.last : bin;
    b.a.bins[within + ((bits >> 31) != 0 ? b.a.negative : 0)] += b.a.by;
  }
};

// Both in one pass, a block at a time: first bins, hash and range, then sums, which keep the vector units busy while
// the counts wait for memory.
template <class V>
void stats_and_count(const CountArgs& a, BlockStats& out) {
  constexpr int w = V::width, vectors = static_cast<int>(kHashLanes) / w;
  constexpr int64_t kBlock = 8 * kHashLanes;
  using I32 = typename V::I32;
  const float* x = a.x;
  const Binner<V> binner(a);
  const I32 prime = V::set_i32(static_cast<int32_t>(kHashPrime)), far = V::set_i32(INT_MIN);
  I32 hash[vectors], nearest = far;
  for (auto& h : hash) h = V::set_i32(0);
  auto lo = V::set(__builtin_inff()), hi = V::set(-__builtin_inff());
  typename V::Sum8 power[kPowers];
  alignas(64) int32_t at[kBlock];
  int64_t i = 0;
  for (int64_t n = a.n / kHashLanes * kHashLanes; i < n;) {
    const int64_t first = i, end = n - i < kBlock ? n : i + kBlock;
    for (; i < end; i += kHashLanes)
      for (int j = 0; j < vectors; ++j) {
        const float* p = x + i + j * w;
        const auto v = V::load(p);
        const I32 m = V::magnitude(v), bits = V::load_i32(reinterpret_cast<const int32_t*>(p));
        V::store_i32(at + (i - first) + j * w, Binner<V>::of(binner, bits, m));
        hash[j] = V::add(V::mul_i32(hash[j], prime), bits);
        nearest = V::max(nearest, V::sub(far, m));  // largest for the smallest |x|, smallest for 0
        lo = V::min_skip_nan(v, lo), hi = V::max_skip_nan(v, hi);
      }
    for (int64_t k = first; k < end; k += kHashLanes) {
      for (int j = 0; j < kHashLanes; j += 8) V::add_powers(power, x + k + j);
      Binner<V>::add(binner, at + (k - first));
    }
  }
  uint32_t lane[kHashLanes];
  double sums[kPowers][8];
  for (int j = 0; j < vectors; ++j) V::store_i32(reinterpret_cast<int32_t*>(lane) + j * w, hash[j]);
  for (int k = 0; k < kPowers; ++k) V::lanes(power[k], sums[k]);
  float least = V::reduce_min(lo), most = V::reduce_max(hi);
  int32_t closest = V::reduce_max_i32(nearest);
  for (int k = 0; i < a.n; ++i, ++k) {
    const uint32_t bits = float_to_bits(x[i]), m = bits & 0x7fffffffu;
    const int32_t reach = static_cast<int32_t>(0x80000000u - m);
    const double d = x[i];
    lane[k] = lane[k] * kHashPrime + bits;
    closest = reach > closest ? reach : closest;
    least = x[i] < least ? x[i] : least, most = x[i] > most ? x[i] : most;
    sums[0][k % 8] += d, sums[1][k % 8] += d * d, sums[2][k % 8] += __builtin_fabs(d);
    Binner<V>::add_one(binner, bits);
  }
  out.lo = least + 0.0f, out.hi = most + 0.0f;  // -0 -> +0
  out.top = float_to_bits(out.hi > -out.lo ? out.hi : -out.lo);
  out.least = 0x80000000u - static_cast<uint32_t>(closest);
  if (out.least == 0x80000000u) out.least = 0;
  for (int k = 0; k < kPowers; ++k) out.sum[k] = sum_of_eight(sums[k]);
  uint64_t h[4] = {static_cast<uint64_t>(a.n), 1, 2, 3};  // four independent chains
  for (int k = 0; k < kHashLanes; k += 4)
    for (int j = 0; j < 4; ++j) h[j] = mix64(h[j] + lane[k + j]);
  out.hash = mix64(mix64(mix64(h[0] + h[1]) + h[2]) + h[3]);
}

template <class V>
void sketch_count(const CountArgs& a) {
  constexpr int w = V::width;
  const Binner<V> binner(a);
  alignas(64) int32_t at[kHashLanes];
  int64_t i = 0;
  for (; i + kHashLanes <= a.n; i += kHashLanes) {
    for (int j = 0; j < kHashLanes; j += w) {
      const float* p = a.x + i + j;
      V::store_i32(at + j,
                   Binner<V>::of(binner, V::load_i32(reinterpret_cast<const int32_t*>(p)), V::magnitude(V::load(p))));
    }
    Binner<V>::add(binner, at);
  }
  for (; i < a.n; ++i) Binner<V>::add_one(binner, float_to_bits(a.x[i]));
}

template <class V>
struct SketchRows {
  static constexpr SketchRow rows[1] = {{stats_and_count<V>, sketch_count<V>}};
};

}  // namespace lowbit
