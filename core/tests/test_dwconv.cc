// Depthwise convolution: every row against the sum written out plainly, and the driver over whole tensors.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/fp_environment.h"
#include "base/threads.h"
#include "drivers/conv/conv.h"
#include "tests/check.h"

namespace lowbit {
namespace {

std::mt19937_64 rng(17);

int32_t between(int32_t lo, int32_t hi) {
  return lo + static_cast<int32_t>(rng() % static_cast<uint64_t>(hi - lo + 1));
}

// A third at the ends of the range, where sums are largest.
int32_t hard(int32_t lo, int32_t hi) { return rng() % 3 == 0 ? (rng() % 2 ? lo : hi) : between(lo, hi); }

std::vector<uint8_t> bytes(int64_t n) {
  std::vector<uint8_t> v(static_cast<size_t>(n));
  for (auto& b : v) b = static_cast<uint8_t>(hard(0, 255));
  return v;
}

int32_t value(uint8_t code, bool is_signed) { return is_signed ? static_cast<int8_t>(code) : code; }

uint8_t requantized(int64_t sum, float by, int32_t zero, int32_t lo, int32_t hi) {
  const float steps = std::nearbyintf(static_cast<float>(sum) * by);
  const float low = static_cast<float>(lo - zero), high = static_cast<float>(hi - zero);
  return static_cast<uint8_t>(static_cast<int32_t>(std::clamp(steps, low, high)) + zero);
}

struct Bounds {
  bool is_signed;
  int32_t zero, lo, hi;
};
const Bounds kBounds[] = {{false, 128, 0, 255},    {false, 0, 0, 255},   {false, 255, 10, 240}, {true, 0, -128, 127},
                          {true, -128, -128, 127}, {true, 127, -100, 5}, {false, 3, 7, 7}};
// The last two make steps beyond int32: they must end at the bounds, not wrap.
const float kMultipliers[] = {0.0003f, 0.5f, 0.0117f, 1.0f, 1e-30f, 4e6f, 3e30f};

constexpr uint8_t kUntouched = 0xcd;

// One call of a row. Taps lie anywhere: only their pointers say where.
bool row_is_right(const DwconvRow& row, int64_t kh, int64_t kw, int64_t stride, int64_t channels, int64_t pixels) {
  const bool x_signed = row.code == Code::s8;
  const int64_t taps = kh * kw, columns = (pixels - 1) * stride + kw + 2, places = 11;
  const std::vector<uint8_t> x = bytes(places * channels);
  std::vector<const void*> table(static_cast<size_t>(kh * columns));
  for (auto& p : table) p = x.data() + rng() % places * channels;
  std::vector<int16_t> w(static_cast<size_t>(channels * taps));
  for (auto& v : w) v = static_cast<int16_t>(hard(-255, 255));
  std::vector<int32_t> offset(static_cast<size_t>(channels));
  std::vector<float> by(static_cast<size_t>(channels));
  for (auto& v : offset) v = hard(-100000, 100000);
  for (auto& v : by) v = kMultipliers[rng() % 7];

  const int64_t room = (channels + row.block - 1) / row.block * row.block;
  std::vector<int16_t> packed(static_cast<size_t>(row.packed(channels, kh, kw)));
  row.pack(w.data(), channels, kh, kw, packed.data());
  std::vector<int32_t> offsets(static_cast<size_t>(room));
  std::vector<float> multipliers(static_cast<size_t>(room));
  row.arrange(offset.data(), channels, offsets.data());
  row.arrange(by.data(), channels, multipliers.data());

  const Bounds& bounds = kBounds[rng() % 7];
  std::vector<uint8_t> y(static_cast<size_t>(pixels * channels * 4 + 64), kUntouched), q = y;
  DwconvArgs a{};
  a.x = table.data(), a.row_step = columns, a.pixels = pixels, a.channels = channels;
  a.weights = packed.data(), a.offset = offsets.data(), a.multiplier = multipliers.data();
  a.zero = bounds.zero, a.qmin = bounds.lo, a.qmax = bounds.hi, a.is_signed = bounds.is_signed;
  a.kh = kh, a.kw = kw, a.stride = stride;
  a.y = y.data(), row.sums(a);
  a.y = q.data(), row.codes(a);

  bool good = true;
  for (int64_t p = 0; p < pixels; ++p)
    for (int64_t c = 0; c < channels; ++c) {
      int64_t sum = offset[c];
      for (int64_t i = 0; i < kh; ++i)
        for (int64_t j = 0; j < kw; ++j) {
          const auto* pixel = static_cast<const uint8_t*>(table[i * columns + p * stride + j]);
          sum += int64_t{value(pixel[c], x_signed)} * w[c * taps + i * kw + j];
        }
      int32_t got;
      std::memcpy(&got, y.data() + (p * channels + c) * 4, 4);
      good &= got == sum && q[p * channels + c] == requantized(sum, by[c], bounds.zero, bounds.lo, bounds.hi);
    }
  const auto untouched = [](const std::vector<uint8_t>& v, int64_t from) {
    return std::all_of(v.begin() + from, v.end(), [](uint8_t b) { return b == kUntouched; });
  };
  return good && untouched(y, pixels * channels * 4) && untouched(q, pixels * channels);
}

struct Kernel {
  int64_t kh, kw, stride;
};

void test_row(const DwconvRow& row, Isa isa) {
  std::vector<Kernel> kernels = {{row.kh, row.kw, row.stride}};
  if (row.kh == 0) kernels = {{1, 1, 1}, {1, 2, 1}, {2, 3, 1}, {3, 3, 3}, {3, 3, 1}, {4, 1, 2}, {7, 7, 1}, {5, 4, 2}};
  const FpEnvironment environment;
  bool good = true;
  for (const Kernel& k : kernels)
    for (const int64_t pixels : {1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 17, 23})  // whole tiles and every rest of one
      for (const int64_t more : {0, 1, 7, row.block - 1, row.block, row.block + 3, 2 * row.block})
        good &= row_is_right(row, k.kh, k.kw, k.stride, row.block + more, pixels);
  report(good, std::string("dwconv ") + isa_name(isa) + " " + (row.code == Code::s8 ? "s8 " : "u8 ") +
                   std::to_string(row.kh) + "x" + std::to_string(row.kw) + " stride " + std::to_string(row.stride));
}

struct Tensor {
  const char* why;
  Window shape;
};
const Tensor kTensors[] = {
    {"same size", {2, 9, 13, 40, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1}},
    {"one pixel", {1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1}},
    {"only padding but one", {1, 1, 1, 33, 5, 5, 1, 1, 4, 4, 4, 4, 1, 1}},
    {"whole windows of padding", {1, 2, 3, 17, 3, 3, 1, 1, 7, 6, 5, 9, 1, 1}},
    {"stride 2", {1, 14, 15, 31, 3, 3, 2, 2, 0, 1, 1, 0, 1, 1}},
    {"stride 2, 5x5", {1, 11, 12, 16, 5, 5, 2, 2, 2, 2, 2, 2, 1, 1}},
    {"strides past the kernel", {2, 20, 21, 9, 2, 3, 5, 4, 0, 2, 3, 0, 1, 1}},
    {"dilation", {1, 15, 16, 24, 3, 3, 1, 1, 2, 2, 2, 2, 2, 2}},
    {"dilation and stride", {1, 17, 19, 7, 3, 2, 2, 3, 3, 0, 1, 4, 3, 5}},
    {"unequal axes", {1, 8, 30, 3, 2, 3, 2, 1, 1, 0, 0, 2, 2, 1}},
    {"large kernel", {1, 16, 16, 5, 7, 7, 1, 1, 3, 3, 3, 3, 1, 1}},
    {"several tiles a row", {1, 3, 1200, 2, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1}},
    {"several tiles a column", {1, 300, 40, 65, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1}},
};

// By the definition, in int64.
std::vector<int64_t> expected(const Window& s, const std::vector<uint8_t>& x, bool x_signed, int32_t zx,
                              const std::vector<uint8_t>& w, bool w_signed, const std::vector<int32_t>& zw) {
  std::vector<int64_t> sums;
  sums.reserve(static_cast<size_t>(s.pixels() * s.channels));
  for (int64_t b = 0; b < s.batch; ++b)
    for (int64_t oy = 0; oy < s.out_height(); ++oy)
      for (int64_t ox = 0; ox < s.out_width(); ++ox)
        for (int64_t c = 0; c < s.channels; ++c) {
          int64_t sum = 0;
          for (int64_t i = 0; i < s.kernel_h; ++i)
            for (int64_t j = 0; j < s.kernel_w; ++j) {
              const int64_t y = oy * s.stride_h - s.top + i * s.dilation_h;
              const int64_t column = ox * s.stride_w - s.left + j * s.dilation_w;
              if (y < 0 || y >= s.height || column < 0 || column >= s.width) continue;
              const uint8_t code = x[((b * s.height + y) * s.width + column) * s.channels + c];
              sum += int64_t{value(code, x_signed) - zx} *
                     (value(w[(c * s.kernel_h + i) * s.kernel_w + j], w_signed) - zw[c]);
            }
          sums.push_back(sum);
        }
  return sums;
}

void test_tensor(const Tensor& t, Isa isa) {
  const Window& s = t.shape;
  const int64_t n = s.pixels() * s.channels, channels = s.channels;
  bool sums_good = true, codes_good = true, floats_good = true;
  for (const bool x_signed : {false, true}) {
    const bool w_signed = rng() % 2 == 0;
    const std::vector<uint8_t> x = bytes(s.batch * s.height * s.width * channels),
                               w = bytes(channels * s.kernel_h * s.kernel_w);
    const int32_t zx = x_signed ? hard(-128, 127) : hard(0, 255);
    std::vector<int32_t> zw(static_cast<size_t>(channels)), add(zw.size());
    std::vector<float> scale(zw.size()), bias(zw.size());
    for (auto& v : zw) v = w_signed ? hard(-128, 127) : hard(0, 255);
    for (auto& v : add) v = hard(-1000000, 1000000);
    for (auto& v : scale) v = static_cast<float>(between(1, 1000)) * 1e-5f;
    for (auto& v : bias) v = static_cast<float>(between(-1000, 1000));
    const std::vector<int64_t> want = expected(s, x, x_signed, zx, w, w_signed, zw);
    const DwconvWeights weights(isa, x_signed ? Code::s8 : Code::u8, s, w_signed ? Code::s8 : Code::u8, w.data(),
                                zw.data());
    const Bounds& bounds = kBounds[rng() % 7];
    const float row_scale = 0.37f, out_scale = 0.9f;
    for (const int threads : {1, 2, 3, 7}) {
      set_num_threads(threads);
      Epilogue f{};
      f.result = Result::s32;
      std::vector<int32_t> y(static_cast<size_t>(n) + 16, 0x55555555);
      dwconv(s, weights, x.data(), zx, f, y.data());
      for (int64_t i = 0; i < n; ++i) sums_good &= y[i] == want[i];
      for (int64_t i = n; i < n + 16; ++i) sums_good &= y[i] == 0x55555555;

      f.add = add.data(), f.scale = scale.data(), f.scale_per_column = true, f.row_scale = &row_scale;
      f.out_scale = out_scale, f.result = bounds.is_signed ? Result::s8 : Result::u8;
      f.zero = bounds.zero, f.lo = bounds.lo, f.hi = bounds.hi;
      std::vector<uint8_t> q(static_cast<size_t>(n) + 64, kUntouched);
      dwconv(s, weights, x.data(), zx, f, q.data());
      for (int64_t i = 0; i < n; ++i) {
        const float by = row_scale * scale[i % channels] / out_scale;
        codes_good &= q[i] == requantized(want[i] + add[i % channels], by, bounds.zero, bounds.lo, bounds.hi);
      }
      for (int64_t i = n; i < n + 64; ++i) codes_good &= q[i] == kUntouched;

      f.result = Result::f32, f.bias = bias.data(), f.floor = -500.0f, f.ceiling = 700.0f;
      std::vector<float> z(static_cast<size_t>(n) + 16, 1.25f);
      dwconv(s, weights, x.data(), zx, f, z.data());
      for (int64_t i = 0; i < n; ++i) {
        const float by = row_scale * scale[i % channels];
        const float sum = static_cast<float>(want[i] + add[i % channels]) * by;
        floats_good &= z[i] == std::clamp(sum + bias[i % channels], -500.0f, 700.0f);
      }
      for (int64_t i = n; i < n + 16; ++i) floats_good &= z[i] == 1.25f;
    }
  }
  const std::string label = std::string("dwconv ") + isa_name(isa) + " " + t.why + ": ";
  report(sums_good, label + "sums");
  report(codes_good, label + "codes");
  report(floats_good, label + "floats");
}

}  // namespace

void test_dwconv(Isa isa) {
  const int threads = num_threads();
  for (const DwconvRow& row : dwconv_rows(isa)) test_row(row, isa);
  set_max_isa(isa_name(isa));
  for (const Tensor& t : kTensors) test_tensor(t, isa);
  set_max_isa("");
  set_num_threads(threads);
}

}  // namespace lowbit
