// Products of bits: every row against the equation written out, and the drivers over whole matrices and images.
#include <cstring>
#include <random>
#include <vector>

#include "base/threads.h"
#include "drivers/gemm/binary.h"
#include "kernels/gemm_binary/gemm_binary.h"
#include "tests/check.h"

namespace lowbit {

void test_binary_rows(Isa isa);
void test_binary_drivers();

namespace {

std::mt19937_64 rng(11);

enum class Fill { random, all_differ, all_agree };

std::vector<uint8_t> random_bytes(int64_t n) {
  std::vector<uint8_t> x(n);
  for (auto& v : x) v = static_cast<uint8_t>(rng());
  return x;
}

int bit(const uint8_t* x, int64_t i) { return x[i / 8] >> (i % 8) & 1; }

// One tile of one row of the table: blocks of `bytes` bytes, as many as fit 16 bits in the extreme.
bool tile_is_right(const BinaryRow& row, int64_t rows, int64_t bytes, int64_t blocks, Fill fill, bool expand = true) {
  const int64_t k = bytes * blocks, c = kBinaryColumns;
  std::vector<uint8_t> a = random_bytes(rows * k), b = random_bytes(k * c);  // b: [k][columns]
  if (fill != Fill::random) {
    std::memset(a.data(), 0x5a, a.size());
    std::memset(b.data(), fill == Fill::all_differ ? 0xa5 : 0x5a, b.size());
  }
  std::vector<uint64_t> codes((row.code_bytes * (rows + 1) * k + 7) / 8);
  row.prepare({a.data(), k, rows, k, k, 0xff, codes.data()});
  alignas(64) static uint8_t scratch[kBinaryScratch];
  std::vector<uint16_t> counts((rows + 1) * c, 0xabcd);
  for (int64_t i = 0; i < blocks; ++i) {
    const uint8_t* columns = b.data() + i * bytes * c;
    expand &= row.expand != nullptr;
    if (expand) row.expand(columns, bytes, scratch), columns = scratch;
    row.dot({codes.data(), k, i * bytes, rows, columns, expand, bytes, counts.data(), i > 0});
  }
  bool good = true;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t j = 0; j < c; ++j) {
      int want = 0;
      for (int64_t i = 0; i < k; ++i)
        for (int s = 0; s < 8; ++s) want += (a[r * k + i] ^ b[i * c + j]) >> s & 1;
      good &= counts[r * c + j] == want;
    }
  for (int64_t j = 0; j < c; ++j) good &= counts[rows * c + j] == 0xabcd;  // nothing past the last row
  return good;
}

bool epilogue_is_right(const BinaryRow& row) {
  bool good = true;
  constexpr int64_t rows = 3, c = kBinaryColumns, next = (rows + 2) * c;
  for (const int64_t n : {1, 2, 7, 8, 9, 31, 33, 63, 64, 65, 128, 200})
    for (const bool with_fix : {false, true})
      for (const bool each : {false, true}) {
        if (with_fix && n > c) continue;  // only one tile has it
        const int64_t stride = n + 3;
        std::vector<uint16_t> counts(4 * next);
        std::vector<int32_t> fix(rows * c), sums(rows * stride, 77);
        std::vector<float> sa(rows), sb(n), bias(n), y(rows * stride, 77.0f);
        for (auto& v : counts) v = static_cast<uint16_t>(rng());
        for (auto& v : fix) v = static_cast<int32_t>(rng() % 2000001) - 1000000;
        for (auto* scales : {&sa, &sb, &bias})
          for (auto& v : *scales) v = static_cast<float>(rng() % 1000) / 777 + 0.01f;
        BinaryEpilogueArgs f{counts.data(), next,   rows,      n,    123456,    with_fix ? fix.data() : nullptr,
                             sums.data(),   stride, sa.data(), each, sb.data(), bias.data()};
        row.epilogue_s32(f);
        f.y = y.data();
        row.epilogue_f32(f);
        for (int64_t i = 0; i < rows * stride; ++i) {
          const int64_t r = i / stride, j = i % stride;
          if (j < n) {
            const int32_t count = counts[j / c * next + r * c + j % c];
            const int32_t want = 123456 - 2 * count + (with_fix ? fix[r * c + j] : 0);
            const float scale = sa[each ? r : 0] * sb[j], product = static_cast<float>(want) * scale;
            good &= sums[i] == want && y[i] == product + bias[j];
          } else {
            good &= sums[i] == 77 && y[i] == 77.0f;  // nothing between rows
          }
        }
      }
  return good;
}

// Bits of a row's last byte that do not count, and the bytes per row is filled up with.
bool padding_is_right(const BinaryRow& row) {
  bool good = true;
  for (int64_t rows = 1; rows <= 3; ++rows)
    for (const int64_t bytes : {1, 2, 4}) {
      const int64_t padded = (bytes + 2) / 3 * 3;
      std::vector<uint8_t> a(rows * bytes, 0xff), b(padded * kBinaryColumns, 0);
      std::vector<uint64_t> codes((row.code_bytes * (rows + 1) * padded + 7) / 8, ~0ull);
      row.prepare({a.data(), bytes, rows, bytes, padded, 0x07, codes.data()});
      std::vector<uint16_t> counts(rows * kBinaryColumns);
      row.dot({codes.data(), padded, 0, rows, b.data(), false, padded, counts.data(), false});
      for (const uint16_t count : counts) good &= count == 8 * (bytes - 1) + 3;
    }
  return good;
}

void test_row(const BinaryRow& row, Isa isa) {
  const std::string name = std::string("binary ") + isa_name(isa) + " " + row.method;
  bool random = true;
  for (const int64_t rows : {1, 2, 3, 7, 8, 9, 16, 17})
    for (const int64_t bytes : {int64_t{3}, int64_t{6}, int64_t{27}, row.block - 3, row.block})
      for (const int64_t blocks : bytes % 2 == 0 ? std::vector<int64_t>{1, 2, 5} : std::vector<int64_t>{1})
        random &= tile_is_right(row, rows, bytes, blocks, Fill::random, false) &&
                  tile_is_right(row, rows, bytes, blocks, Fill::random, true);
  report(random, name + ": random bits");
  report(tile_is_right(row, kBinaryRows, row.block, 1, Fill::random), name + ": a full tile");
  bool extremes = true;
  for (const int64_t rows : {1, 2, 9})
    for (const int64_t blocks : {int64_t{1}, binary_most_blocks(row)})
      for (const bool expand : {false, true})
        extremes &= tile_is_right(row, rows, row.block, blocks, Fill::all_differ, expand) &&
                    tile_is_right(row, rows, row.block, blocks, Fill::all_agree, expand);
  report(extremes, name + ": every bit differs, or none, as many as fit");
  report(padding_is_right(row), name + ": padding counts for nothing");
  report(epilogue_is_right(row), name + ": sums and scales");
}

template <class Check>
void on_every_isa(const std::string& what, const Check& check) {
  for (int i = 0; i < kIsaCount; ++i) {
    if (!isa_available(static_cast<Isa>(i))) continue;
    set_max_isa(isa_name(static_cast<Isa>(i)));
    bool good = true;
    for (const int threads : {1, 2, 3, 7}) set_num_threads(threads), good &= check();
    report(good, std::string("binary ") + what + " " + isa_name(static_cast<Isa>(i)) + ": all threads");
  }
  set_max_isa(""), set_num_threads(1);
}

void test_matmul(int64_t m, int64_t n, int64_t k) {
  const int64_t bytes = (k + 7) / 8;
  const std::vector<uint8_t> a = random_bytes(m * bytes), b = random_bytes(n * bytes);  // padding bits random too
  std::vector<int32_t> want(m * n), sums(m * n);
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j)
      for (int64_t p = 0; p < k; ++p) want[i * n + j] += bit(&a[i * bytes], p) == bit(&b[j * bytes], p) ? 1 : -1;
  std::vector<float> sa(m + 1), sb(n + 1), bias(n + 1), y(m * n);
  for (auto* v : {&sa, &sb, &bias})
    for (auto& s : *v) s = 0.01f + static_cast<float>(rng() % 1000) / 333;
  const std::string sizes = std::to_string(m) + "x" + std::to_string(n) + "x" + std::to_string(k);
  on_every_isa("matmul " + sizes, [&] {
    const PackedBits packed(b.data(), n, bytes, static_cast<uint8_t>(0xff >> (-k & 7)));
    std::fill(sums.begin(), sums.end(), -1), std::fill(y.begin(), y.end(), -1.0f);
    binary_matmul(a.data(), m, packed, k, {}, sums.data());
    bool good = sums == want;
    for (const bool each : {false, true}) {
      const BinaryScales scales{sa.data(), each, sb.data(), each, each ? bias.data() : nullptr};
      binary_matmul(a.data(), m, packed, k, scales, y.data());
      for (int64_t i = 0; i < m * n; ++i) {
        const float scale = sa[each ? i / n : 0] * sb[each ? i % n : 0];
        const float product = static_cast<float>(want[i]) * scale;
        good &= y[i] == product + (each ? bias[i % n] : 0.0f);
      }
    }
    return good;
  });
}

void test_conv(const BinaryConvShape& s, const Window& a, bool channels_first) {
  const int64_t pixels = a.height * a.width, channels = s.groups * s.channels, outputs = s.groups * s.outputs;
  const int64_t oh = a.out_height(), ow = a.out_width();
  std::vector<uint8_t> stream = random_bytes((a.batch * channels * pixels + 7) / 8);  // [images][channels][pixels]
  std::vector<uint8_t> w = random_bytes(outputs * s.taps() * s.bytes());
  if (s.channels % 8 != 0)
    for (size_t i = s.bytes() - 1; i < w.size(); i += s.bytes()) w[i] &= 0xff >> (8 - s.channels % 8);
  std::vector<int32_t> want(a.batch * outputs * oh * ow), y(want.size());
  for (int64_t i = 0; i < static_cast<int64_t>(want.size()); ++i) {
    const int64_t image = i / (outputs * oh * ow), o = i / (oh * ow) % outputs, oy = i / ow % oh, ox = i % ow;
    int32_t sum = 0;
    for (int64_t t = 0; t < s.taps(); ++t) {
      const int64_t iy = oy * a.stride_h - a.top + t / s.kernel[1] * a.dilation_h;
      const int64_t ix = ox * a.stride_w - a.left + t % s.kernel[1] * a.dilation_w;
      if (iy < 0 || iy >= a.height || ix < 0 || ix >= a.width) continue;
      for (int64_t c = 0; c < s.channels; ++c) {
        const int64_t channel = o / s.outputs * s.channels + c;
        const int x = bit(stream.data(), (image * channels + channel) * pixels + iy * a.width + ix);
        sum += x == bit(&w[(o * s.taps() + t) * s.bytes()], c) ? 1 : -1;
      }
    }
    const int64_t last = ((image * oh + oy) * ow + ox) * outputs + o;
    want[channels_first ? i : last] = sum;
  }
  const std::string sizes = std::to_string(s.groups) + " groups, " + std::to_string(s.channels) + " channels, " +
                            std::to_string(s.outputs) + " outputs";
  on_every_isa("conv2d " + sizes, [&] {
    std::vector<uint8_t> x(a.batch * pixels * s.groups * s.bytes());
    binary_channels_last(stream.data(), a.batch, channels, pixels, s.groups, x.data());
    const PackedBitsConv packed(w.data(), s);
    binary_conv2d(a, channels_first, x.data(), packed, {}, y.data());
    return y == want;
  });
}

void test_align_rows() {
  bool good = true;
  for (const int64_t rows : {0, 1, 3, 8, 1000})
    for (const int64_t k : {0, 1, 3, 7, 8, 9, 63, 64, 65, 1001}) {
      const std::vector<uint8_t> stream = random_bytes((rows * k + 7) / 8);
      const int64_t bytes = (k + 7) / 8;
      std::vector<uint8_t> out(rows * bytes), want(rows * bytes);
      for (int64_t i = 0; i < rows * k; ++i)
        want[i / k * bytes + i % k / 8] |= static_cast<uint8_t>(bit(stream.data(), i) << (i % k % 8));
      binary_align_rows(stream.data(), rows, k, out.data());
      good &= out == want;
    }
  report(good, "binary: rows of any length on whole bytes");
}

}  // namespace

void test_binary_rows(Isa isa) {
  const KernelTable<BinaryRow> rows = gemm_binary_rows(isa), plain = gemm_binary_rows(isa, false);
  test_row(rows.front(), isa);
  if (plain.data() != rows.data()) test_row(plain.front(), isa);
}

void test_binary_drivers() {
  // One, two, odd, around a tile and a block, below a byte, no bits at all, and more than 16 bits can count.
  for (const int64_t m : {0, 1, 2, 5, 127, 129})
    for (const int64_t n : {0, 1, 63, 65})
      for (const int64_t k : {0, 1, 7, 64, 241}) test_matmul(m, n, k);
  test_matmul(300, 130, 257);
  test_matmul(3, 5, 65521), test_matmul(2, 3, 140001);
  test_conv({1, 3, 5, {3, 3}}, {2, 7, 9, 3, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1}, true);
  test_conv({1, 64, 66, {3, 3}}, {1, 13, 12, 64, 3, 3, 2, 1, 1, 0, 2, 1, 1, 1, 1}, false);
  test_conv({2, 9, 4, {3, 2}}, {3, 8, 8, 18, 3, 2, 1, 2, 4, 3, 0, 5, 2, 3, 2}, true);
  test_conv({5, 1, 2, {1, 1}}, {1, 4, 4, 5, 1, 1, 1, 1, 2, 2, 2, 2, 1, 1, 5}, false);
  test_align_rows();
}

}  // namespace lowbit
