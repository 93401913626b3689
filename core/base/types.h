// Element and code types.
#pragma once
#include <cstdint>
#include <type_traits>

namespace lowbit {

struct half_t {
  uint16_t bits;
};
struct bfloat_t {
  uint16_t bits;
};

enum class Element : int { f32 = 0, f64 = 1, f16 = 2, bf16 = 3 };

// Sub-byte codes are packed, first element in the low bits; b1 is a sign bit (1 where x > 0).
enum class Code : int { s8 = 0, u8 = 1, s16 = 2, u16 = 3, s4 = 4, u4 = 5, s2 = 6, u2 = 7, b1 = 8 };

constexpr const char* kElementNames[] = {"f32", "f64", "f16", "bf16"};
constexpr const char* kCodeNames[] = {"s8", "u8", "s16", "u16", "s4", "u4", "s2", "u2", "b1"};
constexpr int kElementBytes[] = {4, 8, 2, 2};
constexpr int kCodeBits[] = {8, 8, 16, 16, 4, 4, 2, 2, 1};

static inline int element_bytes(Element e) { return kElementBytes[static_cast<int>(e)]; }
static inline int compute_bytes(Element e) { return e == Element::f64 ? 8 : 4; }  // of the type arithmetic runs in
static inline int code_bits(Code c) { return kCodeBits[static_cast<int>(c)]; }
static inline int64_t packed_bytes(Code c, int64_t n) { return (n * code_bits(c) + 7) / 8; }

// The type the arithmetic runs in: f64 for f64 data, f32 for everything narrower.
template <class In>
using compute_t = std::conditional_t<std::is_same_v<In, double>, double, float>;

// Block size of sums: element i of a block goes to lane i mod 8, and blocks are added in order.
constexpr int64_t kSumBlock = 4096;

}  // namespace lowbit
