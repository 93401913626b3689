// The samples of a sketch: a reservoir of the elements with the highest priorities, and the tails.
#include <algorithm>
#include <bit>
#include <functional>

#include "drivers/reduce/sketch.h"
#include "simd/vec.h"

namespace lowbit {

bool is_before(const Kept& a, const Kept& b) {
  if (a.priority != b.priority) return a.priority > b.priority;
  return float_to_bits(a.value) > float_to_bits(b.value);
}

namespace {

// The elements of a block have places j: a permutation of 0 .. kSumBlock - 1 that the seed picks. Priorities are
// uniform over 32 bits and follow the place: a j with t trailing zero bits, of which there is one in 2^(t + 1), takes
// its priority from the t-th of the intervals [1 - 2^-t, 1 - 2^-(t + 1)). So the places above a floor are enumerated
// without visiting the others.
constexpr uint32_t kPlaces = static_cast<uint32_t>(kSumBlock);
constexpr int kPlaceBits = std::countr_zero(kPlaces);

struct Places {
  uint32_t a, b, c;
  explicit Places(uint64_t hash)
      : a(static_cast<uint32_t>(hash) | 1),
        b(static_cast<uint32_t>(hash >> 20)),
        c(static_cast<uint32_t>(hash >> 40) | 1) {}
  // Each step can be undone modulo kPlaces: no two places have the same element.
  uint32_t element(uint32_t j) const {
    uint32_t e = (j * a + b) % kPlaces;
    e ^= e >> (kPlaceBits / 2);
    e = e * c % kPlaces;
    return e ^ e >> (kPlaceBits / 2 + 1);
  }
  uint32_t priority(uint32_t j) const {
    const int zeros = j == 0 ? kPlaceBits : std::countr_zero(j);
    const uint32_t within = (j ^ b) * 0x9e3779b1u ^ (a * 0x85ebca77u);
    const uint32_t mixed = (within ^ within >> 15) * 0xc2b2ae3du;
    const uint32_t start = zeros == 0 ? 0 : ~uint32_t{0} << (32 - zeros);
    return start + (mixed >> std::min(zeros + 1, kPlaceBits));
  }
};

// Puts into `tail`, which has *had elements, those of x that belong to the first kTail in the order `ahead`.
template <class Ahead>
void extend(float* tail, int32_t* had, const float* x, int64_t n, float floor, Ahead ahead) {
  float some[kSumBlock + kTail];
  int64_t size = std::copy(tail, tail + *had, some) - some;
  const float last = *had == kTail && ahead(tail[kTail - 1], floor) ? tail[kTail - 1] : floor;
  for (int64_t i = 0; i < n; ++i) {
    some[size] = x[i] + 0.0f;
    size += ahead(x[i], last);
  }
  *had = static_cast<int32_t>(std::min(kTail, size));
  if (size > kTail) std::nth_element(some, some + kTail - 1, some + size, ahead);
  std::sort(some, some + *had, ahead);
  std::copy(some, some + *had, tail);
}

}  // namespace

uint32_t Sketches::floor(int64_t scale) const {
  return reservoir_ > 0 && held[scale] == reservoir_ ? std::max(floor_, kept[scale * reservoir_].priority) : floor_;
}

void Sketches::sample(int64_t scale, const float* x, int64_t n, uint64_t hash) {
  if (reservoir_ == 0) return;
  const Places places(hash);
  const int level = std::min(std::countl_one(floor(scale)), kPlaceBits);
  for (uint32_t j = 0; j < kPlaces; j += uint32_t{1} << level) {
    const uint32_t e = places.element(j);
    if (e >= n) continue;
    const uint32_t p = places.priority(j);
    if (p >= floor(scale)) keep(scale, {p, x[e]});
  }
}

void Sketches::keep(int64_t scale, Kept k) {
  Kept* heap = kept.data() + scale * reservoir_;
  int32_t& size = held[scale];
  if (size < reservoir_) {
    heap[size++] = k;
    if (size == reservoir_) std::make_heap(heap, heap + size, is_before);
    return;
  }
  if (!is_before(k, heap[0])) return;
  // In place of the least: the better child moves up until k's place is found.
  int64_t at = 0;
  for (int64_t child; (child = 2 * at + 1) < size; at = child) {
    if (child + 1 < size && is_before(heap[child], heap[child + 1])) ++child;
    if (!is_before(k, heap[child])) break;
    heap[at] = heap[child];
  }
  heap[at] = k;
}

void Sketches::extend_tails(int64_t scale, const float* greatest, int64_t n, const float* least, int64_t m) {
  float* tail = tails.data() + scale * 2 * kTail;
  int32_t* had = tailed.data() + scale * 2;
  if (n > 0) extend(tail, had, greatest, n, tail_floor_[0], std::greater<float>());
  if (m > 0) extend(tail + kTail, had + 1, least, m, tail_floor_[1], std::less<float>());
}

}  // namespace lowbit
