// Loops with enough independent operations to keep every unit busy.
#pragma once
#include "kernels/peak/peak.h"
#include "simd/vec.h"

namespace lowbit {

template <class V>
int64_t peak_fma(int64_t rounds) {
  constexpr int chains = 12;  // at least latency times units, at most the registers
  typename V::F32 acc[chains];
  const auto a = V::set(0.999999f), b = V::set(1e-6f);
  for (int k = 0; k < chains; ++k) acc[k] = V::set(static_cast<float>(k));
  for (int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 12
    for (int k = 0; k < chains; ++k) acc[k] = multiply_add<V>(acc[k], a, b);
  }
  float sink[V::width];
  for (int k = 1; k < chains; ++k) acc[0] = V::add(acc[0], acc[k]);
  V::store(sink, acc[0]);
  volatile float kept = sink[0];
  (void)kept;
  return rounds * chains * V::width * 2;
}

// Reads four streams at a time: hardware prefetchers follow each of them.
template <class V>
float peak_read(const float* x, int64_t n, int64_t times) {
  constexpr int chains = 8, streams = 4;
  typename V::I32 acc[chains];
  for (auto& v : acc) v = V::set_i32(0);
  const int32_t* p = reinterpret_cast<const int32_t*>(x);
  constexpr int64_t chunk = 1 << 16;
  for (int64_t t = 0; t < times; ++t) {
    for (int64_t c = 0; c < n; c += chunk) {
      const int64_t each = (n - c < chunk ? n - c : chunk) / streams;
      for (int64_t i = 0; i < each; i += 2 * V::width) {
#pragma GCC unroll 8
        for (int k = 0; k < chains; ++k)
          acc[k] = V::max(acc[k], V::load_i32(p + c + k / 2 * each + i + k % 2 * V::width));
      }
    }
    asm volatile("" ::: "memory");  // otherwise compilers read once
  }
  for (int k = 1; k < chains; ++k) acc[0] = V::max(acc[0], acc[k]);
  return static_cast<float>(V::reduce_max_i32(acc[0]));
}

template <class V>
struct PeakRows {
  static constexpr PeakRow rows[1] = {{peak_fma<V>, peak_read<V>}};
};

}  // namespace lowbit
