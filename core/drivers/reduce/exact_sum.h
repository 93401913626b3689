#pragma once
#include <cstdint>

namespace lowbit {

// A sum of doubles without rounding: 2^-1074 times an integer.
class ExactSum {
 public:
  static constexpr int kLimbs = 68;
  void add(double x);
  void add(const ExactSum& other);
  void normalize();  // every limb but the last in [0, 2^32): equal sums have equal limbs
  int64_t limb[kLimbs] = {};
  bool finite = true;  // false once an Inf or NaN was added; the limbs then mean nothing

 private:
  int64_t pending_ = 0;  // additions since the last normalize
};

}  // namespace lowbit
