#include "drivers/reduce/exact_sum.h"

#include <algorithm>
#include <bit>

namespace lowbit {

constexpr int64_t kNormalizeAt = 1 << 20;  // additions; a limb grows by less than 2^32 in each

void ExactSum::add(double x) {
  const auto bits = std::bit_cast<uint64_t>(x);
  const int exponent = static_cast<int>(bits >> 52 & 0x7ff);
  if (exponent == 0x7ff) {
    finite = false;
    return;
  }
  const uint64_t fraction = bits & ((uint64_t{1} << 52) - 1);
  const uint64_t mantissa = exponent == 0 ? fraction : fraction | uint64_t{1} << 52;
  const int at = std::max(exponent, 1) - 1;
  const unsigned __int128 shifted = static_cast<unsigned __int128>(mantissa) << (at % 32);
  const int64_t sign = bits >> 63 ? -1 : 1;
  for (int i = 0; i < 3; ++i)
    limb[at / 32 + i] += sign * static_cast<int64_t>(static_cast<uint32_t>(shifted >> (32 * i)));
  if (++pending_ >= kNormalizeAt) normalize();
}

void ExactSum::add(const ExactSum& other) {
  for (int i = 0; i < kLimbs; ++i) limb[i] += other.limb[i];
  finite = finite && other.finite;
  pending_ += other.pending_ + 1;
  if (pending_ >= kNormalizeAt) normalize();
}

void ExactSum::normalize() {
  int64_t carry = 0;
  for (int i = 0; i + 1 < kLimbs; ++i) {
    const int64_t v = limb[i] + carry;
    limb[i] = v & 0xffffffff;
    carry = v >> 32;
  }
  limb[kLimbs - 1] += carry;
  pending_ = 0;
}

}  // namespace lowbit
