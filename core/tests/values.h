// Numbers that hurt, sizes with their reasons, and how results are compared.
#pragma once
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/arch.h"
#include "base/types.h"
#include "simd/scalar.h"

namespace lowbit {

inline const char* const kElement[] = {"f32", "f64", "f16", "bf16"};
inline const char* const kCode[] = {"s8", "u8", "s16", "u16", "s4", "u4", "s2", "u2", "b1"};

inline std::string label(const char* family, Isa isa, const char* a, const char* b, const char* how) {
  return std::string(family) + " " + isa_name(isa) + " " + a + " " + b + " " + how;
}

struct CodeRange {
  int lo, hi;
};
// Sizes with their reason: empty, one, below and around every vector width and block, odd, deep.
inline const int64_t kSizes[] = {0,  1,  2,  3,  4,  5,  7,   8,   9,   15,  16,  17,
                                 31, 32, 33, 63, 64, 65, 100, 127, 128, 129, 255, 1003};

inline std::mt19937_64 rng(7);

// Numbers that hurt: ties and their neighbours, the clamp's edges, subnormals, zeros, NaN, infinities.
template <class In>
std::vector<In> hard_values(int64_t n, double s) {
  std::vector<In> x(n);
  for (auto& v : x) {
    double d = 0;
    switch (rng() % 8) {
      case 0:
      case 1:
      case 2:
        d = (static_cast<double>(static_cast<int64_t>(rng() % 600)) - 300 + 0.5) * s;
        break;
      case 3:
        d = (static_cast<double>(static_cast<int64_t>(rng() % 140000)) - 70000) * s * 0.5;
        break;
      case 4: {
        const double specials[] = {0.0, -0.0, INFINITY, -INFINITY, std::nan(""), 1e-42, -1e-42, 3e38, -3e38, 65504};
        d = specials[rng() % 10];
        break;
      }
      default:
        d = (static_cast<double>(rng() % 2000001) / 1e6 - 1) * 200 * s;
    }
    if constexpr (sizeof(In) == 8) {
      v = d;
      if (rng() % 2) v = std::nextafter(v, rng() % 2 ? INFINITY : -INFINITY);
    } else {
      float f = static_cast<float>(d);
      if (rng() % 2) f = std::nextafter(f, rng() % 2 ? INFINITY : -INFINITY);
      narrow(&v, f);
    }
  }
  return x;
}

template <class Out>
bool same_bits(Out a, Out b) {
  return std::memcmp(&a, &b, sizeof(Out)) == 0;
}

template <class Out>
bool same_number(Out a, Out b) {
  const auto x = widen(a), y = widen(b);
  return same_bits(a, b) || (x != x && y != y);
}

}  // namespace lowbit
