// Integer matrix products through their drivers, with each ISA's kernels, against the sum written out plainly.
#include <algorithm>
#include <bit>
#include <cfenv>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/arch.h"
#include "base/fp_environment.h"
#include "base/threads.h"
#include "drivers/conv/conv.h"
#include "drivers/gemm/gemm.h"
#include "drivers/gemm/groups.h"
#include "tests/check.h"

namespace lowbit {
namespace {

std::mt19937_64 rng(11);

int32_t between(int32_t lo, int32_t hi) {
  return lo + static_cast<int32_t>(rng() % static_cast<uint64_t>(hi - lo + 1));
}

// A third of them at the ends of the range, where sums grow fastest and pairs saturate.
std::vector<uint8_t> codes(int64_t n, int32_t lo, int32_t hi) {
  std::vector<uint8_t> v(static_cast<size_t>(n));
  for (auto& c : v) c = static_cast<uint8_t>(rng() % 3 == 0 ? (rng() % 2 ? lo : hi) : between(lo, hi));
  return v;
}

int64_t value(uint8_t code, bool is_signed) { return is_signed ? static_cast<int8_t>(code) : code; }

struct Size {
  const char* why;
  int64_t m, n, k;
};
const Size kSizes[] = {{"one", 1, 1, 1},
                       {"two", 2, 2, 2},
                       {"prime", 7, 17, 13},
                       {"below a tile", 3, 5, 31},
                       {"above a tile", 13, 33, 65},
                       {"power of two", 16, 64, 64},
                       {"a task and a bit", 97, 270, 33},
                       {"a k-block and a bit", 5, 18, 517},
                       {"one row, k-blocks, half a block", 1, 517, 2000},
                       {"four rows, k-blocks", 4, 40, 1600},
                       {"a tile, k-blocks", 6, 24, 1600},
                       {"tiles of two heights, k-blocks", 17, 41, 1700},
                       {"tasks of rows", 200, 17, 300},
                       {"tasks of columns, rows packed once", 20, 790, 789},
                       {"the same, k-blocks, rows a page apart", 19, 500, 4096},
                       {"short sums, parts of a task", 97, 700, 39},
                       {"past int32", 2, 3, 40000},
                       {"no depth", 2, 3, 0},
                       {"no rows", 0, 3, 4}};

void test_sums(Isa isa) {
  for (const Size& s : kSizes) {
    for (int kind = 0; kind < 12; ++kind) {
      const bool a_signed = kind & 1, b_signed = kind & 2;
      constexpr int32_t kMost[] = {128, 64, 32};  // any, pairs fit 16 bits, fours do
      const int32_t most = kMost[kind / 4], middle = b_signed ? 0 : 128;
      const int32_t a_lo = a_signed ? -128 : 0, b_lo = b_signed ? -128 : 0;
      const auto a = codes(s.m * s.k, a_lo, a_lo + 255);
      const auto b = codes(s.k * s.n, middle - most, middle + most - 1);
      std::vector<int32_t> za(static_cast<size_t>(std::max<int64_t>(1, s.m))), zb(static_cast<size_t>(s.n));
      for (auto& z : za) z = between(a_lo, a_lo + 255);
      for (auto& z : zb) z = between(b_lo, b_lo + 255);
      const PackedMatrix packed(b.data(), b_signed, s.k, s.n, s.n, 1, zb.data(), s.n);
      CodeRows rows{};
      rows.rows = s.m, rows.is_signed = a_signed, rows.zero = za.data(), rows.zero_per_row = true;
      rows.codes = a.data(), rows.stride = s.k;
      Epilogue f{};
      f.result = Result::s32, f.wide = true;
      std::vector<int64_t> wide(static_cast<size_t>(s.m * s.n));
      gemm(rows, packed, f, wide.data(), s.n);
      f.wide = false;
      std::vector<int32_t> out(static_cast<size_t>(s.m * s.n));
      if (s.k <= kExactK) gemm(rows, packed, f, out.data(), s.n);
      bool good = true;
      for (int64_t i = 0; i < s.m; ++i) {
        for (int64_t j = 0; j < s.n; ++j) {
          int64_t sum = 0;
          for (int64_t k = 0; k < s.k; ++k)
            sum += (value(a[i * s.k + k], a_signed) - za[i]) * (value(b[k * s.n + j], b_signed) - zb[j]);
          good &= wide[i * s.n + j] == sum && (s.k > kExactK || out[i * s.n + j] == sum);
        }
      }
      std::vector<uint8_t> back(b.size());
      packed.unpack(back.data());
      for (int64_t k = 0; k < s.k; ++k)
        for (int64_t j = 0; j < s.n; ++j) good &= back[j * s.k + k] == b[k * s.n + j];
      report(good, std::string("gemm ") + isa_name(isa) + " " + s.why + " " + std::to_string(kind));
    }
  }
}

// Kernels have two ways through the columns, of which drivers take one or the other depending on the CPU.
void test_ways_through_columns(Isa isa) {
  const GemmRow& kernel = gemm_rows(isa)[0];
  const int64_t item = kernel.a == GemmOperand::s16 ? 2 : 1;
  for (const bool segmented : {false, true}) {
    bool good = true;
    for (const int64_t quads : {2, 20, 96, 98, 256}) {
      for (const int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 11, 13, 18, 50, 96}) {
        for (const int64_t blocks : {1, 2, 3, 4, 7}) {
          const int64_t depth = quads * 4, columns = blocks * kGemmCols - rows % 9;
          const int64_t padded = rows + kernel.at_once - 1, stride = depth * item;
          const auto a = codes(padded * depth, 0, 127), b = codes(depth * blocks * kGemmCols, -128, 127);
          std::vector<char> packed(static_cast<size_t>(padded * stride));
          for (int64_t r = 0; r < padded; ++r)
            kernel.pack_a(a.data() + r * depth, depth, kernel.a == GemmOperand::s8, false, packed.data() + r * stride,
                          depth);
          std::vector<int32_t> from(static_cast<size_t>(blocks * kGemmCols));
          for (auto& v : from) v = between(-100000, 100000);
          // A row in two parts, the second one first.
          const int64_t half = quads / 2 / kGemmQuads * kGemmQuads;
          const GemmSegment parts[] = {{half * 4 * item, quads - half}, {0, half}};
          std::vector<int32_t> sums[2];
          for (const bool paired : {false, true}) {
            auto& c = sums[paired];
            c.assign(static_cast<size_t>(padded * blocks * kGemmCols), 0);
            GemmArgs x{};
            x.a = packed.data(), x.a_stride = stride, x.rows = rows, x.quads = quads, x.columns = columns;
            x.b = reinterpret_cast<const int8_t*>(b.data()), x.b_stride = depth * kGemmCols;
            x.c = c.data(), x.c_stride = blocks * kGemmCols, x.from = from.data(), x.paired = paired;
            if (segmented) x.segments = parts, x.segment_count = parts[1].quads > 0 ? 2 : 1;
            kernel.run(x);
          }
          for (int64_t r = 0; r < rows; ++r)
            for (int64_t j = 0; j < columns; ++j)
              good &= sums[0][r * blocks * kGemmCols + j] == sums[1][r * blocks * kGemmCols + j];
          if (segmented) continue;
          for (int64_t j = 0; j < columns; ++j) {  // the last row, written out
            int64_t sum = from[j];
            for (int64_t k = 0; k < depth; ++k)
              sum += a[(rows - 1) * depth + k] *
                     value(b[(j / kGemmCols * quads + k / 4) * kGemmCols * 4 + j % kGemmCols * 4 + k % 4], true);
            good &= sums[1][(rows - 1) * blocks * kGemmCols + j] == sum;
          }
        }
      }
    }
    report(good,
           std::string("gemm ") + isa_name(isa) + " one block or two at a time" + (segmented ? ", segments" : ""));
  }
}

// On both sides of where sums of two and of four products leave 16 bits, whichever of eight places they are at.
void test_where_sixteen_bits_end(Isa isa) {
  constexpr int64_t kPatterns = 256, kDepth = 8;
  bool good = true;
  for (const int32_t most : {1, 127, 128, 254, 255}) {
    for (const int32_t weight : {16, 31, 32, 33, 63, 64, 65, 127, 128}) {
      std::vector<uint8_t> a(kPatterns * kDepth), b(kDepth * kPatterns);
      for (int64_t i = 0; i < kPatterns; ++i) {
        for (int64_t k = 0; k < kDepth; ++k) {
          a[i * kDepth + k] = static_cast<uint8_t>(i >> k & 1 ? most : 0);
          b[k * kPatterns + i] = static_cast<uint8_t>(i >> k & 1 ? -weight : std::min(weight, 127));
        }
      }
      const PackedMatrix packed(b.data(), true, kDepth, kPatterns, kPatterns, 1, nullptr, 0);
      const int32_t zero = 0;
      CodeRows rows{};
      rows.rows = kPatterns, rows.zero = &zero, rows.codes = a.data(), rows.stride = kDepth;
      Epilogue f{};
      f.result = Result::s32;
      std::vector<int32_t> out(kPatterns * kPatterns);
      gemm(rows, packed, f, out.data(), kPatterns);
      for (uint32_t i = 0; i < kPatterns; ++i) {
        for (uint32_t j = 0; j < kPatterns; ++j) {
          const int32_t down = std::popcount(i & j), up = std::popcount(i & ~j);
          good &= out[i * kPatterns + j] == most * (std::min(weight, 127) * up - weight * down);
        }
      }
    }
  }
  report(good, std::string("gemm ") + isa_name(isa) + " where 16 bits end");
}

void test_epilogue(Isa isa, int64_t m, int64_t n, int64_t k) {
  const auto a = codes(m * k, 0, 255), b = codes(k * n, -128, 127);
  const int32_t za = 7, zb = -3;
  const PackedMatrix packed(b.data(), true, k, n, n, 1, &zb, 1);
  CodeRows rows{};
  rows.rows = m, rows.zero = &za, rows.codes = a.data(), rows.stride = k;
  std::vector<float> scale(static_cast<size_t>(n)), bias(scale.size()), row_scale(static_cast<size_t>(m));
  std::vector<int32_t> add(scale.size());
  for (auto& s : scale) s = 0.001f * static_cast<float>(between(1, 999));
  for (auto& s : row_scale) s = 0.001f * static_cast<float>(between(1, 999));
  for (auto& v : bias) v = 0.1f * static_cast<float>(between(-99, 99));
  for (auto& v : add) v = between(-100000, 100000);
  for (const bool per_row : {false, true}) {
    Epilogue f{};
    f.add = add.data(), f.scale = scale.data(), f.scale_per_column = true, f.row_scale = row_scale.data();
    f.scale_per_row = per_row, f.floor = -500, f.ceiling = 4000;
    f.out_scale = 3.7f, f.zero = 11, f.lo = 3, f.hi = 120;
    std::vector<float> y(static_cast<size_t>(m * n));
    std::vector<uint8_t> q(y.size());
    std::fesetround(FE_UPWARD);  // the caller's way of rounding changes nothing
    f.result = Result::u8;
    gemm(rows, packed, f, q.data(), n);
    f.result = Result::f32, f.bias = bias.data();
    gemm(rows, packed, f, y.data(), n);
    std::fesetround(FE_TONEAREST);
    bool good = true;
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        int64_t sum = add[j];
        for (int64_t d = 0; d < k; ++d) sum += (a[i * k + d] - za) * (value(b[d * n + j], true) - zb);
        const float by = row_scale[per_row ? i : 0] * scale[j], t = static_cast<float>(sum);
        const float scaled = t * by, expected = std::clamp(scaled + bias[j], f.floor, f.ceiling);
        const float multiplier = by / f.out_scale, product = t * multiplier;
        const float steps = std::clamp(std::nearbyintf(product), 3.0f - 11, 120.0f - 11);
        good &= y[i * n + j] == expected && q[i * n + j] == static_cast<int32_t>(steps) + 11;
      }
    }
    report(good, std::string("epilogue ") + isa_name(isa) + " " + std::to_string(m) + " rows, " +
                     (per_row ? "a scale each" : "one scale"));
  }
}

void test_groups(Isa isa) {
  const struct {
    int64_t m, n, k, block;
  } sizes[] = {{1, 1, 1, 16},      {2, 3, 50, 16},    {7, 17, 33, 32},   {33, 140, 256, 128},
               {5, 48, 1000, 100}, {4, 16, 64, 64},   {1, 64, 128, 128}, {6, 65, 256, 32},
               {1, 127, 96, 48},   {1, 128, 200, 64}, {8, 193, 64, 64}};
  for (const auto& s : sizes) {
    for (int kind = 0; kind < 8; ++kind) {
      const int bits = kind & 1 ? 4 : 2;
      const bool zeros = kind & 2, per_group = kind & 4;
      const int64_t groups = (s.k + s.block - 1) / s.block;
      const auto a = codes(s.m * s.k, -128, 127), b = codes(s.n * s.k, 0, (1 << bits) - 1);
      const auto zero = codes(s.n * groups, 0, (1 << bits) - 1);
      std::vector<float> scale(static_cast<size_t>(s.n * groups)), a_scale(static_cast<size_t>(s.m * groups));
      for (auto& v : scale) v = 0.001f * static_cast<float>(between(1, 999));
      for (auto& v : a_scale) v = 0.001f * static_cast<float>(between(1, 999));
      const PackedGroups packed(b.data(), s.k, s.n, bits, s.block, scale.data(), zeros ? zero.data() : nullptr, 1);
      const float infinity = std::numeric_limits<float>::infinity();
      std::vector<float> y(static_cast<size_t>(s.m * s.n));
      group_matmul(reinterpret_cast<const int8_t*>(a.data()), s.m, a_scale.data(), per_group, packed,
                   {.result = Result::f32, .floor = -infinity, .ceiling = infinity}, y.data());
      bool good = true;
      for (int64_t i = 0; i < s.m; ++i) {
        for (int64_t j = 0; j < s.n; ++j) {
          float expected = 0;
          for (int64_t g = 0; g < groups; ++g) {
            int64_t dot = 0;
            for (int64_t k = g * s.block; k < std::min(s.k, (g + 1) * s.block); ++k)
              dot += value(a[i * s.k + k], true) * (b[j * s.k + k] - (zeros ? zero[j * groups + g] : 1));
            const float by = per_group ? a_scale[i * groups + g] * scale[j * groups + g] : scale[j * groups + g];
            const float term = static_cast<float>(dot) * by;
            expected = expected + term;
          }
          if (!per_group) expected = expected * a_scale[i];
          good &= y[i * s.n + j] == expected;
        }
      }
      std::vector<uint8_t> back(b.size());
      packed.unpack(back.data());
      good &= back == b;
      report(good, std::string("groups ") + isa_name(isa) + " " + std::to_string(s.k) + " by " +
                       std::to_string(s.block) + " " + std::to_string(kind));
    }
  }
}

// Within 4 * eps * sum|terms| of what f64 gives, and the same bits whatever the rows beside it and the threads.
void test_float_groups(Isa isa) {
  const struct {
    int64_t m, n, k, block;
  } sizes[] = {{1, 1, 1, 16},    {3, 17, 33, 32},   {9, 140, 256, 128}, {5, 48, 1000, 100},
               {8, 65, 256, 32}, {33, 127, 96, 48}, {2, 64, 0, 32},     {7, 16, 4100, 4096}};
  for (const auto& s : sizes) {
    for (int kind = 0; kind < 8; ++kind) {
      const int bits = kind & 1 ? 4 : 2;
      const bool zeros = kind & 2, has_bias = kind & 4;
      const int64_t groups = (s.k + s.block - 1) / s.block;
      const auto b = codes(s.n * s.k, 0, (1 << bits) - 1), zero = codes(s.n * groups, 0, (1 << bits) - 1);
      std::vector<float> scale(static_cast<size_t>(s.n * groups)), x(static_cast<size_t>(s.m * s.k)),
          bias(static_cast<size_t>(s.n));
      for (auto& v : scale) v = 0.001f * static_cast<float>(between(1, 999));
      for (auto& v : x) v = static_cast<float>(between(kind & 2 ? 0 : -100000, 100000)) / 777;  // of one sign, too
      for (auto& v : bias) v = 0.1f * static_cast<float>(between(-99, 99));
      const PackedGroups packed(b.data(), s.k, s.n, bits, s.block, scale.data(), zeros ? zero.data() : nullptr, 1);
      const float infinity = std::numeric_limits<float>::infinity();
      const Epilogue epilogue{
          .result = Result::f32, .bias = has_bias ? bias.data() : nullptr, .floor = -infinity, .ceiling = infinity};
      std::vector<float> y(static_cast<size_t>(s.m * s.n)), alone(y.size());
      float_matmul({x.data(), Element::f32, s.m}, packed, epilogue, y.data());
      for (int64_t i = 0; i < s.m; ++i)
        float_matmul({x.data() + i * s.k, Element::f32, 1}, packed, epilogue, alone.data() + i * s.n);
      bool good = y == alone;
      for (int64_t i = 0; i < s.m; ++i) {
        for (int64_t j = 0; j < s.n; ++j) {
          double sum = has_bias ? bias[j] : 0.0, all = std::abs(sum);
          for (int64_t k = 0; k < s.k; ++k) {
            const int32_t step = b[j * s.k + k] - (zeros ? zero[j * groups + k / s.block] : 1);
            const float w = static_cast<float>(step) * scale[j * groups + k / s.block];
            const double term = double{x[i * s.k + k]} * double{w};
            sum += term, all += std::abs(term);
          }
          good &= std::abs(y[i * s.n + j] - sum) <= 4 * 0x1p-23 * all;
        }
      }
      report(good, std::string("float groups ") + isa_name(isa) + " " + std::to_string(s.k) + " by " +
                       std::to_string(s.block) + " " + std::to_string(kind));
    }
  }
}

void test_convolution(Isa isa, const char* name, ConvShape s, bool x_signed, int64_t out = 5) {
  s.out_h = (s.height + s.top + s.bottom - (s.dilation_h * (s.kernel_h - 1) + 1)) / s.stride_h + 1;
  s.out_w = (s.width + s.left + s.right - (s.dilation_w * (s.kernel_w - 1) + 1)) / s.stride_w + 1;
  const int64_t zero = x_signed ? -3 : 131;
  const auto x = codes(s.batch * s.height * s.width * s.channels, x_signed ? -128 : 0, x_signed ? 127 : 255);
  auto w = codes(out * s.depth(), -128, 127);
  for (size_t i = 0; i < w.size(); ++i)
    if (static_cast<int64_t>(i) % s.line >= s.run()) w[i] = 0;
  const PackedMatrix packed(w.data(), true, s.depth(), out, 1, s.depth(), nullptr, 0);
  Epilogue f{};
  f.result = Result::s32;
  std::vector<int32_t> y(static_cast<size_t>(s.rows() * out));
  convolve(s, x.data(), x_signed, static_cast<int32_t>(zero), packed, f, y.data(), out);
  bool good = true;
  for (int64_t row = 0; row < s.rows(); ++row) {
    for (int64_t o = 0; o < out; ++o) {
      int64_t sum = 0;
      for (int64_t d = 0; d < s.depth(); ++d) {
        const int64_t c = d % s.line % s.group_channels, kx = d % s.line / s.group_channels, ky = d / s.line;
        if (kx >= s.kernel_w) continue;
        const int64_t iy = row / s.out_w % s.out_h * s.stride_h - s.top + ky * s.dilation_h;
        const int64_t ix = row % s.out_w * s.stride_w - s.left + kx * s.dilation_w;
        if (iy < 0 || iy >= s.height || ix < 0 || ix >= s.width) continue;
        const int64_t image = row / (s.out_w * s.out_h);
        const int64_t at = ((image * s.height + iy) * s.width + ix) * s.channels + s.first_channel + c;
        sum += (value(x[at], x_signed) - zero) * value(w[o * s.depth() + d], true);
      }
      good &= y[row * out + o] == sum;
    }
  }
  report(good, std::string("convolve ") + isa_name(isa) + " " + name + (x_signed ? " s8" : " u8"));
}

void test_convolutions(Isa isa) {
  const struct {
    const char* name;
    ConvShape s;
  } kShapes[] = {
      {"channels 2 to 5 of 6", {{2, 7, 9, 6, 3, 2, 2, 1, 1, 1, 2, 0, 1, 2}, 0, 0, 2, 4, 8}},
      {"from lines", {{2, 7, 9, 16, 3, 3, 1, 1, 1, 1, 2, 0, 1, 1}, 0, 0, 0, 16, 48}},
      {"from lines, half the channels, stride 2", {{2, 8, 9, 16, 3, 3, 2, 2, 0, 2, 2, 0, 1, 1}, 0, 0, 8, 8, 24}},
      {"from lines, dilation", {{1, 9, 11, 8, 2, 3, 1, 2, 1, 3, 2, 0, 2, 2}, 0, 0, 0, 8, 24}},
      {"from lines that are filled", {{3, 9, 12, 3, 4, 5, 2, 2, 1, 2, 2, 0, 1, 1}, 0, 0, 0, 3, 16}},
      {"filled, dilation", {{1, 9, 12, 3, 3, 3, 1, 1, 1, 1, 2, 0, 1, 2}, 0, 0, 0, 3, 16}},
      {"deep", {{1, 5, 6, 128, 3, 3, 1, 1, 1, 1, 2, 0, 1, 1}, 0, 0, 0, 128, 384}},
      {"wide", {{1, 3, 230, 8, 3, 3, 1, 1, 1, 1, 2, 0, 1, 1}, 0, 0, 0, 8, 24}},
      {"lines too long for a strip", {{1, 3, 6000, 16, 3, 3, 1, 1, 1, 1, 2, 0, 1, 1}, 0, 0, 0, 16, 48}},
  };
  for (const auto& k : kShapes)
    for (const bool x_signed : {false, true}) test_convolution(isa, k.name, k.s, x_signed);
  test_convolution(isa, "from lines, many channels", {{1, 4, 30, 8, 3, 3, 1, 1, 1, 1, 2, 0, 1, 1}, 0, 0, 0, 8, 24},
                   false, 900);
}

}  // namespace

void test_products(Isa isa) {
  const FpEnvironment environment;
  const std::string before = max_isa();
  set_max_isa(isa_name(isa));
  test_sums(isa);
  test_where_sixteen_bits_end(isa);
  test_ways_through_columns(isa);
  test_epilogue(isa, 5, 37, 50);
  const int threads = num_threads();
  set_num_threads(1);
  test_epilogue(isa, 18, 2048, 1200);  // few rows, as many columns as a task takes, k-blocks
  set_num_threads(threads);
  test_groups(isa);
  test_float_groups(isa);
  test_convolutions(isa);
  set_max_isa(before);
}

}  // namespace lowbit
