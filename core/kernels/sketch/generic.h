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
void sketch_stats(const float* x, int64_t n, BlockStats& out) {
  constexpr int w = V::width, vectors = static_cast<int>(kHashLanes) / w;
  using I32 = typename V::I32;
  const I32 prime = V::set_i32(static_cast<int32_t>(kHashPrime)), one = V::set_i32(1), far = V::set_i32(INT_MIN);
  I32 hash[vectors], top = V::set_i32(0), nearest = far, zeros = top;
  for (auto& h : hash) h = V::set_i32(0);
  auto lo = V::set(__builtin_inff()), hi = V::set(-__builtin_inff());
  typename V::Sum8 power[kPowers];
  int64_t i = 0;
  for (; i + kHashLanes <= n; i += kHashLanes) {
    for (int j = 0; j < vectors; ++j) {
      const float* p = x + i + j * w;
      const auto v = V::load(p);
      const I32 m = V::magnitude(v);
      hash[j] = V::add(V::mul_i32(hash[j], prime), V::load_i32(reinterpret_cast<const int32_t*>(p)));
      top = V::max(top, m);
      nearest = V::max(nearest, V::sub(far, m));  // greatest for the least |x|, and least of all for 0
      zeros = V::add(zeros, V::shift_right(V::sub(m, one), 31));
      lo = V::min_skip_nan(v, lo), hi = V::max_skip_nan(v, hi);
    }
    for (int j = 0; j < kHashLanes; j += 8) V::add_powers(power, x + i + j);
  }
  uint32_t lane[kHashLanes];
  double sums[kPowers][8];
  int32_t zero_lanes[w];
  for (int j = 0; j < vectors; ++j) V::store_i32(reinterpret_cast<int32_t*>(lane) + j * w, hash[j]);
  for (int k = 0; k < kPowers; ++k) V::lanes(power[k], sums[k]);
  V::store_i32(zero_lanes, zeros);
  int64_t zero = 0;
  for (int32_t z : zero_lanes) zero += z;
  float least = V::reduce_min(lo), most = V::reduce_max(hi);
  uint32_t greatest = static_cast<uint32_t>(V::reduce_max_i32(top));
  int32_t closest = V::reduce_max_i32(nearest);
  for (int k = 0; i < n; ++i, ++k) {
    const uint32_t bits = float_to_bits(x[i]), m = bits & 0x7fffffffu;
    const int32_t reach = static_cast<int32_t>(0x80000000u - m);
    const double d = x[i], square = d * d;
    lane[k] = lane[k] * kHashPrime + bits;
    greatest = m > greatest ? m : greatest;
    closest = reach > closest ? reach : closest;
    zero += m == 0;
    least = x[i] < least ? x[i] : least, most = x[i] > most ? x[i] : most;
    sums[0][k % 8] += d, sums[1][k % 8] += square, sums[2][k % 8] += square * d, sums[3][k % 8] += square * square;
    sums[4][k % 8] += __builtin_fabs(d);
  }
  out.lo = least + 0.0f, out.hi = most + 0.0f;  // -0 -> +0
  out.top = greatest, out.least = 0x80000000u - static_cast<uint32_t>(closest);
  if (out.least == 0x80000000u) out.least = 0;
  out.zeros = zero;
  for (int k = 0; k < kPowers; ++k) {
    const double* s = sums[k];
    out.sum[k] = ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
  }
  uint64_t h = static_cast<uint64_t>(n);
  for (const uint32_t l : lane) h = mix64(h + l);
  out.hash = h;
}

template <class V>
void sketch_count(const CountArgs& a) {
  constexpr int w = V::width, together = 32;
  using I32 = typename V::I32;
  const I32 first = V::set_i32(a.first), zero = V::set_i32(0), negative = V::set_i32(a.negative);
  const int32_t* x = reinterpret_cast<const int32_t*>(a.x);
  uint64_t* bins = a.bins;
  alignas(64) int32_t at[together];
  int64_t i = 0;
  for (; i + together <= a.n; i += together) {
    for (int j = 0; j < together; j += w) {
      const I32 sign = V::shift_right(V::load_i32(x + i + j), 31);
      const I32 bin = V::sub(V::shift_right(V::magnitude(V::load(a.x + i + j)), a.shift), first);
      V::store_i32(at + j, V::add(V::max(bin, zero), V::mul_i32(sign, negative)));
    }
#pragma GCC unroll 8
    for (int j = 0; j < together; ++j) ++bins[at[j]];
  }
  for (; i < a.n; ++i) {
    const uint32_t bits = float_to_bits(a.x[i]);
    const int32_t bin = static_cast<int32_t>((bits & 0x7fffffffu) >> a.shift) - a.first;
    ++bins[(bin > 0 ? bin : 0) + ((bits >> 31) != 0 ? a.negative : 0)];
  }
}

template <class V, class In>
void widen_block(const void* from, int64_t n, float* out) {
  const In* x = static_cast<const In*>(from);
  int64_t i = 0;
  for (; i + V::width <= n; i += V::width) V::store(out + i, V::load(x + i));
  for (; i < n; ++i) out[i] = widen(x[i]);
}

template <class V>
int64_t sketch_sample(int64_t n, uint32_t seed, int32_t floor, Candidate* out) {
  constexpr int w = V::width, together = 64;
  using I32 = typename V::I32;
  static constexpr int32_t kUp[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const I32 step = V::load_i32(kUp), a = V::set_i32(static_cast<int32_t>(kMix[0])),
            b = V::set_i32(static_cast<int32_t>(kMix[1])), c = V::set_i32(static_cast<int32_t>(kMix[2]));
  int64_t found = 0;
  for (int64_t i = 0; i < n; i += together) {
    const int64_t end = i + together < n ? i + together : n;
    I32 most = V::set_i32(INT_MIN);
    for (int64_t j = i; j < i + together; j += w) {
      I32 t = V::mul_i32(V::add(step, V::set_i32(static_cast<int32_t>(seed + static_cast<uint32_t>(j)))), a);
      t = V::mul_i32(V::add(t, V::shift_right(t, 15)), b);
      t = V::mul_i32(V::add(t, V::shift_right(t, 13)), c);
      most = V::max(most, t);
    }
    if (V::reduce_max_i32(most) < floor) continue;
    for (int64_t j = i; j < end; ++j) {
      const int32_t p = priority_of(seed, static_cast<uint32_t>(j));
      if (p >= floor) out[found++] = {p, static_cast<int32_t>(j)};
    }
  }
  return found;
}

template <class V>
struct SketchRows {
  static constexpr SketchRow rows[1] = {
      {sketch_stats<V>, sketch_count<V>, widen_block<V, half_t>, widen_block<V, bfloat_t>, sketch_sample<V>}};
};

}  // namespace lowbit
