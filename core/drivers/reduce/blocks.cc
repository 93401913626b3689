// What a block of numbers, and an array under many scales, adds to a sketch.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "drivers/elementwise/elementwise.h"
#include "drivers/reduce/sketch.h"
#include "kernels/gemm_float/gemm_float.h"
#include "simd/vec.h"

namespace lowbit {
namespace {

constexpr int64_t kTile = 16;  // columns transposed at once

float narrowed(double x) {  // an Inf stays one, a large number does not become one
  constexpr double most = std::numeric_limits<float>::max();
  return std::isfinite(x) ? static_cast<float>(std::clamp(x, -most, most)) : static_cast<float>(x);
}

// The same sums as the kernel's, of doubles. Returns the number of zeros.
int64_t wide_stats(const double* x, int64_t n, BlockStats& s, Extremes& seen) {
  double sums[kPowers][8] = {};
  int64_t zeros = 0;
  for (int64_t i = 0; i < n; ++i) {
    const double d = x[i];
    const int64_t k = i % 8;
    sums[0][k] += d, sums[1][k] += d * d, sums[2][k] += std::fabs(d);
    seen.include(d, d);
    zeros += d == 0;
  }
  for (int k = 0; k < kPowers; ++k) {
    s.sum[k] = sum_of_eight(sums[k]);
    // The bits that rounding to f32 drops are part of the hash.
    s.hash = (s.hash ^ std::bit_cast<uint64_t>(s.sum[k])) * 0x9e3779b97f4a7c15ull;
  }
  seen.lo += 0.0, seen.hi += 0.0;
  return zeros;
}

void take_back(const SketchRow& row, CountArgs args) {
  args.by = ~uint64_t{0};
  row.count(args);
}

}  // namespace

CountArgs Sketches::args(int64_t scale, const float* x, int64_t n) {
  const BinLayout& l = layouts[scale];
  const int32_t half = l.negative != 0 ? l.negative : static_cast<int32_t>(bins_);
  return {x, n, l.shift, l.first, half - 1, l.negative, 1, counts.data() + scale * bins_};
}

// How many are counted below the first bin: zeros, and what is too small for any.
int64_t Sketches::tiny(int64_t scale) const {
  const uint64_t* c = counts.data() + scale * bins_;
  const int32_t negative = layouts[scale].negative;
  return static_cast<int64_t>(c[0] + (negative != 0 ? c[negative] : 0));
}

Extremes Sketches::block(int64_t scale, const float* x, int64_t n, const double* wide) {
  const SketchRow& row = sketch_rows(active_isa()).front();
  SketchTotals& t = totals[scale];
  BlockStats s;
  const CountArgs here = args(scale, x, n);
  int64_t zeros = -tiny(scale);
  row.stats_and_count(here, s);
  if (!std::isfinite(s.sum[0])) {  // rare: count NaN and Inf, and add the other elements
    take_back(row, here);
    std::vector<float> finite;
    std::vector<double> finite_wide;
    for (int64_t i = 0; i < n; ++i) {
      if (std::isfinite(x[i])) {
        finite.push_back(x[i]);
        if (wide != nullptr) finite_wide.push_back(wide[i]);
      } else {
        ++(std::isnan(x[i]) ? t.nan : x[i] > 0 ? t.above : t.below);
      }
    }
    if (finite.empty()) return {};
    return block(scale, finite.data(), static_cast<int64_t>(finite.size()),
                 wide != nullptr ? finite_wide.data() : nullptr);
  }
  Extremes seen;
  int64_t wide_zeros = 0;
  if (wide != nullptr) {
    wide_zeros = wide_stats(wide, n, s, seen);
  } else {
    seen = {s.lo, s.hi};
  }
  const SketchTotals to = covering(t, s.top, s.least, s.hi > 0, s.lo < 0);
  if (bin_layout(to, bins_) == layouts[scale]) {
    grow(scale, to);
  } else {  // counted in the old layout
    take_back(row, here);
    grow(scale, to);
    zeros = -tiny(scale);
    row.count(args(scale, x, n));
  }
  zeros += tiny(scale);
  const bool some_are_small = is_capped(t) || t.least >> layouts[scale].shift == 0;
  if (zeros != 0 && some_are_small) zeros = std::count(x, x + n, 0.0f);
  const float* tail = tails.data() + scale * 2 * kTail;
  const int32_t* had = tailed.data() + scale * 2;
  const bool above = s.hi > (had[0] == kTail ? std::max(tail_floor_[0], tail[kTail - 1]) : tail_floor_[0]);
  const bool below = s.lo < (had[1] == kTail ? std::min(tail_floor_[1], tail[2 * kTail - 1]) : tail_floor_[1]);
  extend_tails(scale, x, above ? n : 0, x, below ? n : 0);
  t.n += n, t.zeros += wide != nullptr ? wide_zeros : zeros;
  t.include(seen.lo, seen.hi);
  t.hash[0] += s.hash, t.hash[1] += (s.hash ^ s.hash >> 31) * 0xd6e8feb86659fd93ull;
  ExactSum* m = moments.data() + scale * kMoments;
  for (int k = 0; k < kPowers; ++k) m[k].add(s.sum[k]);
  sample(scale, x, n, s.hash);
  return seen;
}

Extremes Sketches::run(int64_t scale, const void* x, Element in, int64_t n) {
  Extremes seen;
  alignas(64) float rounded[kSumBlock];
  for (int64_t i = 0; i < n; i += kSumBlock) {
    const int64_t m = std::min(kSumBlock, n - i);
    const char* p = static_cast<const char*>(x) + i * element_bytes(in);
    const float* numbers = in == Element::f32 ? reinterpret_cast<const float*>(p) : rounded;
    const double* wide = in == Element::f64 ? reinterpret_cast<const double*>(p) : nullptr;
    if (in == Element::f16 || in == Element::bf16) gemm_float_row(active_isa(), in).widen(p, m, rounded);
    for (int64_t j = 0; wide != nullptr && j < m; ++j) rounded[j] = narrowed(wide[j]);
    const Extremes found = block(scale, numbers, m, wide);
    seen.include(found.lo, found.hi);
  }
  return seen;
}

// Scales [first, last) of an array.
void Sketches::run_scales(const Granularity& layout, const void* x, Element in, int64_t first, int64_t last) {
  const int64_t bytes = element_bytes(in);
  const char* data = static_cast<const char*>(x);
  std::vector<Extremes> seen(last - first);
  const auto add = [&](int64_t scale, const char* from, int64_t n) {
    const Extremes found = run(scale, from, in, n);
    seen[scale - first].include(found.lo, found.hi);
  };
  std::vector<char> tile;
  for_each_segment(
      layout, 0, layout.elements(),
      [&](int64_t start, int64_t length, int64_t count, int64_t scale) {
        for (int64_t g = std::max<int64_t>(0, first - scale); g < std::min(count, last - scale); ++g)
          add(scale + g, data + (start + g * length) * bytes, length);
      },
      [&](int64_t start, int64_t rows, int64_t stride, int64_t columns, int64_t scale) {
        if (tile.empty()) tile.resize(kTile * kSumBlock * bytes);
        const int64_t end = std::min(columns, last - scale);
        for (int64_t c = std::max<int64_t>(0, first - scale); c < end; c += kTile) {
          const int64_t wide = std::min(kTile, end - c);
          for (int64_t r = 0; r < rows; r += kSumBlock) {
            const int64_t high = std::min(kSumBlock, rows - r);
            const auto transpose = [&](auto kind) {
              using Word = decltype(kind);
              for (int64_t i = 0; i < high; ++i) {
                const char* from = data + (start + (r + i) * stride + c) * bytes;
                for (int64_t j = 0; j < wide; ++j)
                  std::memcpy(tile.data() + (j * kSumBlock + i) * bytes, from + j * bytes, sizeof(Word));
              }
            };
            if (bytes == 4) transpose(uint32_t{});
            if (bytes == 8) transpose(uint64_t{});
            if (bytes == 2) transpose(uint16_t{});
            for (int64_t j = 0; j < wide; ++j) add(scale + c + j, tile.data() + j * kSumBlock * bytes, high);
          }
        }
      });
  for (int64_t s = first; s < last; ++s) add_sample(s, seen[s - first]);
}

}  // namespace lowbit
