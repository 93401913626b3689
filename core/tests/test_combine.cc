// The rows of combine, codes and pool, and their drivers, against the equations written out plainly. Exact throughout.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "base/threads.h"
#include "drivers/conv/pool.h"
#include "drivers/elementwise/combine.h"
#include "drivers/elementwise/shortcut.h"
#include "kernels/add_mul/add_mul.h"
#include "kernels/clamp_lookup/clamp_lookup.h"
#include "kernels/pool/pool.h"
#include "tests/check.h"

namespace lowbit {
namespace {

std::mt19937_64 rng(11);

// Sizes with their reason: empty, one, below and around every vector and block, odd, deep.
const int64_t kSizes[] = {0, 1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 191, 193, 255, 1003};
constexpr uint8_t kGuard = 0x5a;

std::string name(const char* what, Isa isa, Code code) {
  return std::string(what) + " " + isa_name(isa) + (code == Code::s8 ? " s8" : " u8");
}
int value(Code code, uint8_t byte) { return code == Code::s8 ? static_cast<int8_t>(byte) : byte; }
int least(Code code) { return code == Code::s8 ? -128 : 0; }
Code code_of(bool is_signed) { return is_signed ? Code::s8 : Code::u8; }
int between(int lo, int hi) { return lo + static_cast<int>(rng() % static_cast<uint64_t>(hi - lo + 1)); }
double uniform(double lo, double hi) { return lo + (hi - lo) * static_cast<double>(rng() % 1000001) / 1e6; }
std::vector<uint8_t> bytes(int64_t n) {
  std::vector<uint8_t> out(n);
  for (auto& b : out) b = static_cast<uint8_t>(rng());
  return out;
}

uint8_t expected_code(float v, float s, int z, int qmin, int qmax) {
  const float y = std::nearbyintf(v / s);
  if (std::isnan(y) || y < static_cast<float>(qmin - z)) return static_cast<uint8_t>(qmin);
  return static_cast<uint8_t>(y > static_cast<float>(qmax - z) ? qmax : static_cast<int>(y) + z);
}
uint8_t expected_pair(const AddMulRow& row, const AddMulArgs& k, uint8_t a, uint8_t b) {
  const volatile float va = static_cast<float>(value(code_of(k.a_signed), a) - k.za) * k.sa;
  const volatile float vb = static_cast<float>(value(code_of(k.b_signed), b) - k.zb) * k.sb;
  return expected_code(row.op == AddMulOp::add ? va + vb : va * vb, k.sy, k.zy, k.qmin, k.qmax);
}

AddMulArgs random_args(Code code, double sa, double sb, double sy) {
  AddMulArgs k{};
  k.a_signed = rng() % 2, k.b_signed = rng() % 2;
  k.sa = static_cast<float>(sa), k.sb = static_cast<float>(sb), k.sy = static_cast<float>(sy);
  k.qmin = least(code), k.qmax = least(code) + 255;
  if (rng() % 2) k.qmin = between(k.qmin, k.qmax), k.qmax = between(k.qmin, k.qmax);
  k.za = between(least(code_of(k.a_signed)), least(code_of(k.a_signed)) + 255);
  k.zb = between(least(code_of(k.b_signed)), least(code_of(k.b_signed)) + 255);
  k.zy = between(k.qmin, k.qmax);
  return k;
}

// Codes as the row's function makes them, for every size, aligned or not, into memory of its own or over an operand.
bool agrees(const AddMulRow& row, AddMulFn run, AddMulArgs k) {
  bool good = true;
  for (const int64_t n : kSizes) {
    const std::vector<uint8_t> a = bytes(n), b = bytes(n);
    for (const int shift : {0, 3}) {
      for (const int over : {0, 1, 2}) {
        std::vector<uint8_t> x(n + shift + 64, kGuard), y = x, q = x;
        std::copy(a.begin(), a.end(), x.begin() + shift), std::copy(b.begin(), b.end(), y.begin() + shift);
        std::vector<uint8_t>& to = over == 0 ? q : (over == 1 ? x : y);
        k.a = x.data() + shift, k.b = y.data() + shift, k.q = to.data() + shift, k.n = n;
        run(k);
        for (int64_t i = 0; i < n; ++i) good &= to[i + shift] == expected_pair(row, k, a[i], b[i]);
        good &= std::all_of(to.begin() + shift + n, to.end(), [](uint8_t v) { return v == kGuard; });
      }
    }
  }
  return good;
}

bool agrees_on_all_pairs(const AddMulRow& row, AddMulFn run, AddMulArgs k) {
  std::vector<uint8_t> a(65536), b(65536), q(65536);
  for (int i = 0; i < 65536; ++i) a[i] = static_cast<uint8_t>(i >> 8), b[i] = static_cast<uint8_t>(i);
  k.a = a.data(), k.b = b.data(), k.q = q.data(), k.n = 65536;
  run(k);
  for (int i = 0; i < 65536; ++i)
    if (q[i] != expected_pair(row, k, a[i], b[i])) return false;
  return true;
}

void test_combine_row(const AddMulRow& row, Isa isa) {
  const double scales[][3] = {
      {0.0231, 0.0177, 0.0313},       {0.03, 0.03, 0.03}, {0.03, 0.03, 0.06}, {0.5, 0.25, 1},       {3, 5, 0.01},
      {0x1p-125, 0x1p-125, 0x1p-125}, {5e33, 1e33, 1e30}, {1e30, 3e29, 2e30}, {1e-30, 1e-28, 1e30}, {0.001, 0.002, 1},
      {0x1p-125, 0x1p-125, 0x1p-124}};
  bool good = true, pairs = true;
  for (const auto& s : scales) {
    for (int repeat = 0; repeat < 4; ++repeat) {
      const AddMulArgs k = random_args(row.code, s[0], s[1], s[2]);
      good &= agrees(row, row.exact, k), pairs &= agrees_on_all_pairs(row, row.exact, k);
    }
  }
  const char* op = row.op == AddMulOp::add ? "add" : "mul";
  report(good, name(op, isa, row.code) + " any size");
  report(pairs, name(op, isa, row.code) + " all pairs of codes");
}

// Shortcuts that are found are right; and they are found where they should be, in every number of planes.
void test_shortcuts(const AddMulRow& row, Isa isa) {
  const char* op = row.op == AddMulOp::add ? "add" : "mul";
  if (row.shortcut == nullptr) {
    report(!find_shortcut(row, random_args(row.code, 0.01, 0.02, 0.03)).exists(), name(op, isa, row.code) + " none");
    return;
  }
  bool good = true;
  int seen[AddMulShortcut::kPlanes + 1] = {};
  const auto attempt = [&](AddMulArgs k) {
    const AddMulShortcut s = find_shortcut(row, k);
    ++seen[s.planes];
    k.shortcut = &s;
    if (s.exists()) good &= agrees(row, row.shortcut, k) && agrees_on_all_pairs(row, row.shortcut, k);
    return s.planes;
  };
  constexpr int kTries = 60;
  for (int i = 0; i < kTries; ++i) {
    const double sa = uniform(0.01, 0.1), sb = uniform(0.01, 0.1);
    const double sy = row.op == AddMulOp::add ? std::max(sa, sb) * uniform(0.9, 3) : sa * sb * uniform(40, 200);
    attempt(random_args(row.code, sa, sb, sy));
  }
  report(seen[0] < kTries / 5, name(op, isa, row.code) + " shortcuts for most scales");
  AddMulArgs k = random_args(row.code, 1, 1, 1);
  k.qmin = least(row.code), k.qmax = k.qmin + 255;
  const auto with = [&](double sa, double sb, double sy) {
    k.sa = static_cast<float>(sa), k.sb = static_cast<float>(sb), k.sy = static_cast<float>(sy);
    return attempt(k);
  };
  if (row.op == AddMulOp::add) {
    bool few = with(1, 1, 1) == 1;
    few &= with(1, 0x1p-9, 1) == 2;
    report(few, name(op, isa, row.code) + " fewer planes where digits are 0");
    for (int i = 0; i < 400 && seen[4] == 0; ++i) {
      const double sy = uniform(0.01, 0.1);
      with(sy * uniform(0.5, 1.1), sy * uniform(0.5, 1.1), sy);
    }
    report(seen[3] > 0 && seen[4] > 0, name(op, isa, row.code) + " three planes, and four");
  }
  // No formula of these kinds has these codes, or none that is worth it: ties that rounding errors decide, slopes
  // beyond the planes.
  for (const auto& s :
       {std::array<double, 3>{0.03, 0.03, 0.06}, {1e30, 1e-3, 1e-30}, {1e-30, 1e-30, 1e30}, {700, 1, 1}})
    with(s[0], s[1], s[2]);
  report(good, name(op, isa, row.code) + " shortcuts, any size and all pairs of codes");
}

// Sums by table: right wherever there is one, which is for most scales, and planes where there is none.
void test_tables(const AddMulRow& row, Isa isa) {
  bool good = true;
  int tables = 0, planes = 0;
  const auto attempt = [&](AddMulArgs k) {
    const AddMulShortcut s = find_shortcut(row, k);
    tables += s.by_table, planes += s.planes > 0;
    k.shortcut = &s;
    if (s.exists()) good &= agrees(row, row.shortcut, k) && agrees_on_all_pairs(row, row.shortcut, k);
  };
  constexpr int kTries = 80;
  for (int i = 0; i < kTries; ++i) {
    const double sa = uniform(0.01, 0.1), sb = uniform(0.01, 0.1);
    AddMulArgs k = random_args(row.code, sa, sb, std::max(sa, sb) * uniform(1.3, 3));
    // Numbers about zero, as those of a tensor are: whole parts of both are then bytes.
    k.za = least(code_of(k.a_signed)) + between(96, 160), k.zb = least(code_of(k.b_signed)) + between(96, 160);
    if (i % 2 == 0) k.qmin = least(row.code), k.qmax = k.qmin + 255;
    k.zy = std::clamp(least(row.code) + between(96, 160), k.qmin, k.qmax);
    attempt(k);
  }
  report(tables > kTries * 3 / 4, name("add", isa, row.code) + " tables for most scales");
  for (int i = 0; i < kTries; ++i) {
    const double sy = uniform(0.01, 0.1);
    attempt(random_args(row.code, sy * uniform(0.2, 4.5), sy * uniform(0.2, 4.5), sy));
  }
  report(planes > 0, name("add", isa, row.code) + " planes where no table will do");
  for (const auto& s :
       {std::array<double, 3>{1, 1, 1}, {0.03, 0.03, 0.06}, {1e30, 1e-3, 1e-30}, {700, 1, 1}, {1e-30, 1e-30, 1e30}})
    attempt(random_args(row.code, s[0], s[1], s[2]));
  report(good, name("add", isa, row.code) + " by table, any size and all pairs of codes");
}

void test_codes_row(const ClampLookupRow& row, Isa isa) {
  bool clamped = true, found = true;
  for (const int64_t n : kSizes) {
    for (const bool over : {false, true}) {
      const std::vector<uint8_t> x = bytes(n), table = bytes(256);
      std::vector<uint8_t> q(n + 64, kGuard), p(n + 64, kGuard);
      const int lo = between(least(row.code), least(row.code) + 255), hi = between(lo, least(row.code) + 255);
      if (over) std::copy(x.begin(), x.end(), q.begin()), std::copy(x.begin(), x.end(), p.begin());
      row.clamp({over ? q.data() : x.data(), q.data(), n, static_cast<uint8_t>(lo), static_cast<uint8_t>(hi), nullptr});
      row.lookup({over ? p.data() : x.data(), p.data(), n, 0, 0, table.data()});
      for (int64_t i = 0; i < n; ++i) {
        clamped &= value(row.code, q[i]) == std::min(std::max(value(row.code, x[i]), lo), hi);
        found &= p[i] == table[x[i]];
      }
      for (int64_t i = n; i < n + 64; ++i) clamped &= q[i] == kGuard, found &= p[i] == kGuard;
    }
  }
  report(clamped, name("clamp", isa, row.code));
  report(found, name("lookup", isa, row.code));
}

void test_pool_row(const PoolRow& row, Isa isa) {
  bool largest = true, total = true, average = true;
  for (const int64_t n : kSizes) {
    for (const int64_t count : {1, 2, 9, 70}) {
      std::vector<std::vector<uint8_t>> rows;
      std::vector<const void*> at;
      for (int64_t r = 0; r < count; ++r) rows.push_back(bytes(n));
      for (const auto& r : rows) at.push_back(r.data());
      std::vector<uint8_t> q(n + 64, kGuard);
      std::vector<int32_t> sum(n + 16, 77);
      row.largest({at.data(), count, n, q.data()});
      row.total({at.data(), count, n, sum.data()});
      for (int64_t i = 0; i < n; ++i) {
        int most = -1000, all = 0;
        for (const auto& r : rows) most = std::max(most, value(row.code, r[i])), all += value(row.code, r[i]);
        largest &= value(row.code, q[i]) == most;
        total &= sum[i] == all;
      }
      largest &= q[n] == kGuard, total &= sum[n] == 77;

      AverageArgs k{};
      k.sum = sum.data(), k.q = q.data(), k.n = n, k.zero = between(-2000, 2000);
      k.qmin = between(least(row.code), least(row.code) + 255), k.qmax = between(k.qmin, least(row.code) + 255);
      k.zy = between(k.qmin, k.qmax);
      const float factors[] = {0.5f / static_cast<float>(count), 0.01f, 1e-20f, 1e30f, 0.25f};  // the first: ties
      k.by = factors[rng() % 5];
      std::fill(q.begin(), q.end(), kGuard);
      row.average(k);
      for (int64_t i = 0; i < n; ++i) {
        const float steps = std::nearbyintf(static_cast<float>(sum[i] - k.zero) * k.by);
        const float in =
            std::min(std::max(steps, static_cast<float>(k.qmin - k.zy)), static_cast<float>(k.qmax - k.zy));
        average &= q[i] == static_cast<uint8_t>(static_cast<int>(in) + k.zy);
      }
      average &= q[n] == kGuard;
    }
  }
  report(largest, name("largest", isa, row.code));
  report(total, name("total", isa, row.code));
  report(average, name("average", isa, row.code));
}

// Whole arrays with every kind of broadcasting, on any number of threads, against one element at a time.
void test_broadcasting(Isa isa) {
  using Shape = std::vector<int64_t>;
  const Shape shapes[][3] = {
      {{70001}, {70001}, {70001}},
      {{300, 257}, {300, 257}, {1, 257}},
      {{40, 5000}, {40, 5000}, {1, 5000}},
      {{300, 257}, {300, 1}, {1, 257}},
      {{4, 16, 31, 33}, {4, 16, 1, 1}, {1, 16, 1, 33}},
      {{20, 50, 70}, {1, 50, 1}, {20, 1, 70}},
      {{100000}, {1}, {1}},
      {{}, {}, {}},
      {{3, 0}, {3, 1}, {1, 0}},
  };
  bool good = true;
  for (const auto& [shape, sa, sb] : shapes) {
    const auto elements = [](const Shape& s) {
      int64_t n = 1;
      for (const int64_t v : s) n *= v;
      return n;
    };
    const auto index = [&](int64_t i, const Shape& s) {
      int64_t at = 0, stride = 1;
      for (size_t d = shape.size(); d-- > 0;) {
        at += s[d] == 1 ? 0 : i % shape[d] * stride;
        stride *= s[d], i /= shape[d];
      }
      return at;
    };
    const int64_t n = elements(shape);
    const std::vector<uint8_t> a = bytes(elements(sa)), b = bytes(elements(sb));
    for (const AddMulOp op : {AddMulOp::add, AddMulOp::mul}) {
      const AddMulRow& row = add_mul_row(isa, op, Code::u8);
      AddMulArgs k{};
      k.a_signed = true, k.sa = 0.02f, k.sb = 0.013f, k.sy = 0.03f, k.za = 3, k.zb = 100, k.zy = 90, k.qmax = 255;
      for (const int threads : {1, 2, 3, 7}) {
        set_num_threads(threads);
        std::vector<uint8_t> q(n);
        combine(op, {Code::s8, a.data(), k.sa, k.za, sa}, {Code::u8, b.data(), k.sb, k.zb, sb},
                {Code::u8, q.data(), k.sy, k.zy, k.qmin, k.qmax, shape});
        for (int64_t i = 0; i < n; ++i) good &= q[i] == expected_pair(row, k, a[index(i, sa)], b[index(i, sb)]);
      }
    }
  }
  report(good, std::string("broadcasting ") + isa_name(isa) + " all threads");
}

void test_pooling(Isa isa) {
  const Window shapes[] = {
      {3, 9, 11, 1, 3, 3, 2, 2, 1, 1, 1, 1},      {2, 30, 31, 40, 2, 2, 2, 2, 0, 0, 0, 0},
      {1, 130, 9, 3, 100, 3, 5, 3, 50, 1, 20, 2}, {2, 5, 300, 1, 2, 130, 1, 40, 0, 5, 1, 100},
      {1, 7, 7, 64, 7, 7, 1, 1, 0, 0, 0, 0},      {4, 8, 200, 2, 1, 5, 1, 9, 0, 4, 0, 3},
  };
  bool max_good = true, average_good = true;
  for (const Window& p : shapes) {
    for (const Code code : {Code::s8, Code::u8}) {
      const std::vector<uint8_t> x = bytes(p.inputs());
      const int64_t n = p.pixels() * p.channels;
      for (const int threads : {1, 2, 3, 7}) {
        set_num_threads(threads);
        const AverageParams f{0.02f, threads % 2 ? 0.02f : 0.01f, 5, 11, least(code), least(code) + 255, threads > 2};
        std::vector<uint8_t> most(n), mean(n);
        max_pool(p, code, x.data(), most.data());
        average_pool(p, f, code, x.data(), code, mean.data());
        for (int64_t i = 0; i < n; ++i) {
          const int64_t c = i % p.channels, ow = i / p.channels % p.out_width();
          const int64_t oh = i / p.channels / p.out_width() % p.out_height(),
                        image = i / p.channels / p.out_width() / p.out_height();
          int greatest = -1000, sum = 0, places = 0;
          for (int64_t kh = 0; kh < p.kernel_h; ++kh)
            for (int64_t kw = 0; kw < p.kernel_w; ++kw) {
              const int64_t h = oh * p.stride_h - p.top + kh, w = ow * p.stride_w - p.left + kw;
              if (h < 0 || h >= p.height || w < 0 || w >= p.width) continue;
              const int v = value(code, x[((image * p.height + h) * p.width + w) * p.channels + c]);
              greatest = std::max(greatest, v), sum += v - f.z, ++places;
            }
          max_good &= value(code, most[i]) == greatest;
          const int64_t count = f.count_padding ? p.taps() : places;
          const volatile float by = (f.s / static_cast<float>(count)) / f.sy;
          const int steps = static_cast<int>(std::nearbyintf(static_cast<float>(sum) * by)) + f.zy;
          average_good &= value(code, mean[i]) == std::min(std::max(steps, f.qmin), f.qmax);
        }
      }
    }
  }
  report(max_good, std::string("max pooling ") + isa_name(isa) + " all threads");
  report(average_good, std::string("average pooling ") + isa_name(isa) + " all threads");
}

// Shortcuts are cached by the value of their parameters: equal ones are found again, others are not.
void test_cached(Isa isa) {
  const AddMulRow& row = add_mul_row(isa, AddMulOp::add, Code::s8);
  AddMulArgs k{};
  k.a_signed = k.b_signed = true, k.qmin = -128, k.qmax = 127;
  bool good = true;
  for (int round = 0; round < 2; ++round)
    for (int i = 0; i < 70; ++i) {  // more than are kept
      k.sa = k.sb = k.sy = 0.01f * static_cast<float>(i + 1), k.zy = i % 5;
      const AddMulShortcut* few = cached_shortcut(isa, row, k, kShortcutAfter / 4);
      good &= few == nullptr;
      const AddMulShortcut* many = cached_shortcut(isa, row, k, kShortcutAfter);
      good &= (many != nullptr) == (row.shortcut != nullptr);
      if (many == nullptr) continue;
      k.shortcut = many;
      good &= agrees_on_all_pairs(row, row.shortcut, k) && cached_shortcut(isa, row, k, 1) == many;
      k.zy = 9, good &= cached_shortcut(isa, row, k, 1) == nullptr;
    }
  report(good, std::string("cached shortcuts ") + isa_name(isa));
}

}  // namespace

void test_combine(Isa isa) {
  const std::string cap = max_isa();
  set_max_isa(isa_name(isa));
  for (const AddMulRow& row : add_mul_rows(isa, false)) test_combine_row(row, isa), test_shortcuts(row, isa);
  for (const AddMulRow& row : add_mul_rows(isa))
    if (row.has_tables) test_combine_row(row, isa), test_tables(row, isa);
  for (const ClampLookupRow& row : clamp_lookup_rows(isa)) test_codes_row(row, isa);
  for (const PoolRow& row : pool_rows(isa)) test_pool_row(row, isa);
  test_broadcasting(isa);
  test_pooling(isa);
  test_cached(isa);
  set_max_isa(cap);
}

}  // namespace lowbit
