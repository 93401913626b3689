// Fake quantization, its gradients, its masks and its learned parameters, against the equations written out plainly.
#include <limits>

#include "kernels/fake_quant/fake_quant.h"
#include "tests/check.h"
#include "tests/values.h"

namespace lowbit {
namespace {

// What one element gives: y, and its terms of ds and dz.
template <class In>
struct FakeExpected {
  In y;
  double ds = 0, dz = 0;
  FakeExpected(FakeOp op, In x, In dy, compute_t<In> s, int z, CodeRange r) {
    using T = compute_t<In>;
    const T v = widen(x), g = widen(dy), q = v / s, steps = std::nearbyint(q);
    const T lo = static_cast<T>(r.lo - z), hi = static_cast<T>(r.hi - z);
    const bool inside = steps >= lo && steps <= hi;
    T out = 0;
    if (op == FakeOp::fake) out = v != v ? v : (std::min(std::max(steps, lo), hi) + 0) * s;
    if (op == FakeOp::fake_backward && inside) out = g;
    if (op == FakeOp::quantize_backward && inside) out = g / s;
    if (op == FakeOp::scaled) out = g * s;
    narrow(&y, out);
    const T t = inside ? steps - q : (steps < lo ? lo : hi);
    if (steps == steps) ds = static_cast<double>(g) * static_cast<double>(t);
    if (steps < lo || steps > hi) dz = static_cast<double>(g) * -static_cast<double>(s);
  }
};

// y as without a mask, a bit for each place inside, nothing written beyond either; and the gradient by those bits.
template <class In>
void test_masked(const FakeQuantRow& row, Isa isa) {
  using T = compute_t<In>;
  bool numbers = true, bits_good = true, kept = true;
  for (const int64_t group : {1, 5, 8, 16, 31, 32, 40, 64, 500, 512, 544, 1003, 4096, 32811}) {
    for (int trial = 0; trial < 12; ++trial) {
      const CodeRange r = trial % 3 == 0   ? CodeRange{-128, 127}
                          : trial % 3 == 1 ? CodeRange{0, 15}
                                           : CodeRange{-400, 7};
      const int64_t n = group % 8 == 0 ? 3 * group : group;
      const T sd = static_cast<T>(std::ldexp(1.0 + static_cast<double>(rng() % 1000) / 1000, trial - 8));
      const std::vector<In> x = hard_values<In>(n, static_cast<double>(sd)), dy = hard_values<In>(n, 1);
      std::vector<In> room(n + 32);
      std::vector<uint8_t> bits((n + 7) / 8 + 8, 0xa5);
      T scale[3];
      int32_t zero[3];
      for (int k = 0; k < 3; ++k) {
        scale[k] = trial == 11 ? std::numeric_limits<float>::max() / 65536 : sd * static_cast<T>(1 << k);
        zero[k] = r.lo + static_cast<int>(rng() % (r.hi - r.lo + 1));
      }
      In* y = room.data();
      if (trial % 2 == 0)  // aligned for non-temporal stores
        while (reinterpret_cast<uintptr_t>(y) % 64 != 0) ++y;
      FakeQuantArgs a{};
      a.x = x.data(), a.y = y, a.n = n, a.group = group, a.scale = scale, a.zero = zero, a.bits = bits.data();
      a.qmin = r.lo, a.qmax = r.hi, a.stream = trial % 4 < 2;
      row.masked(a);
      for (int64_t i = 0; i < n; ++i) {
        const int64_t k = i / group;
        numbers &= same_number(y[i], FakeExpected<In>(FakeOp::fake, x[i], dy[i], scale[k], zero[k], r).y);
        const T steps = std::nearbyint(widen(x[i]) / scale[k]);
        const bool inside = steps >= static_cast<T>(r.lo - zero[k]) && steps <= static_cast<T>(r.hi - zero[k]);
        bits_good &= (bits[i / 8] >> (i % 8) & 1) == inside;
      }
      if (n % 8 != 0) bits_good &= bits[n / 8] >> (n % 8) == 0;
      for (size_t i = (n + 7) / 8; i < bits.size(); ++i) bits_good &= bits[i] == 0xa5;
      row.keep(dy.data(), bits.data(), y, n);
      for (int64_t i = 0; i < n; ++i) kept &= same_bits(y[i], bits[i / 8] >> (i % 8) & 1 ? dy[i] : In{});
    }
  }
  const char* e = kElement[static_cast<int>(row.in)];
  report(numbers, label("fake_quant", isa, e, "", "masked"));
  report(bits_good, label("fake_quant", isa, e, "", "bits of the mask"));
  report(kept, label("fake_quant", isa, e, "", "kept by a mask"));
}

// Results at every place of a page beside the operands: stores and later loads share the low bits of their addresses.
template <class In>
void test_orders(const FakeQuantRow& row, Isa isa) {
  using T = compute_t<In>;
  constexpr int64_t n = 1531, kPage = 4096, kBytes = (n * sizeof(In) / kPage + 3) * kPage;
  const T s = static_cast<T>(0.03);
  const int32_t z = 3;
  const CodeRange r{-128, 127};
  const std::vector<In> values = hard_values<In>(n, static_cast<double>(s)), gradients = hard_values<In>(n, 1);
  std::vector<char> room(3 * kBytes + kPage);
  char* const page = room.data() + (kPage - reinterpret_cast<uintptr_t>(room.data()) % kPage) % kPage;
  bool good = true, masks = true;
  for (const int64_t of_y : {0, 64, 128, 1024, 2048, 3072, 4032}) {
    for (const int64_t of_dy : {0, 64, 4032}) {
      In *x = reinterpret_cast<In*>(page), *dy = reinterpret_cast<In*>(page + kBytes + of_dy);
      In* y = reinterpret_cast<In*>(page + 2 * kBytes + of_y);
      std::copy(values.begin(), values.end(), x), std::copy(gradients.begin(), gradients.end(), dy);
      std::vector<uint8_t> bits((n + 7) / 8);
      FakeQuantArgs a{};
      a.x = x, a.dy = dy, a.y = y, a.n = a.group = n, a.scale = &s, a.zero = &z, a.qmin = r.lo, a.qmax = r.hi;
      a.bits = bits.data();
      for (int op = 0; op < kFakeOps; ++op) {
        row.grouped[op](a);
        for (int64_t i = 0; i < n; ++i)
          good &= same_number(y[i], FakeExpected<In>(static_cast<FakeOp>(op), x[i], dy[i], s, z, r).y);
      }
      row.masked(a);
      for (int64_t i = 0; i < n; ++i)
        masks &= same_number(y[i], FakeExpected<In>(FakeOp::fake, x[i], dy[i], s, z, r).y);
      row.keep(dy, bits.data(), y, n);
      for (int64_t i = 0; i < n; ++i)
        masks &= same_number(y[i], FakeExpected<In>(FakeOp::fake_backward, x[i], dy[i], s, z, r).y);
    }
  }
  const char* e = kElement[static_cast<int>(row.in)];
  report(good, label("fake_quant", isa, e, "", "every place of a page"));
  report(masks, label("fake_quant", isa, e, "", "masked, every place of a page"));
}

template <class In>
void test_fake_quant_row(const FakeQuantRow& row, Isa isa) {
  using T = compute_t<In>;
  bool grouped = true, columns = true, runs = true, learned_columns = true;
  for (const int64_t n : kSizes) {
    for (int trial = 0; trial < 8; ++trial) {
      const CodeRange r = trial % 2 ? CodeRange{-128, 127} : (trial % 4 ? CodeRange{0, 15} : CodeRange{-32768, 32767});
      const T sd =
          static_cast<T>(std::ldexp(1.0 + static_cast<double>(rng() % 1000) / 1000, static_cast<int>(rng() % 8) - 8));
      const std::vector<In> x = hard_values<In>(3 * n, sd), dy = hard_values<In>(3 * n, 1);
      std::vector<In> y(3 * n + 64);
      std::vector<T> scale(n + 4);
      std::vector<int32_t> zero(n + 4);
      for (size_t i = 0; i < scale.size(); ++i) {
        scale[i] = sd * static_cast<T>(1 + static_cast<double>(rng() % 1000) / 777);
        zero[i] = r.lo + static_cast<int>(rng() % (r.hi - r.lo + 1));
      }
      FakeQuantArgs a{};
      a.x = x.data(), a.dy = dy.data(), a.scale = scale.data(), a.zero = zero.data(), a.qmin = r.lo, a.qmax = r.hi;
      for (int op = 0; op < kFakeOps; ++op) {
        const FakeOp kind = static_cast<FakeOp>(op);
        const auto expect = [&](int64_t i, int64_t k) {
          return FakeExpected<In>(kind, x[i], dy[i], scale[k], zero[k], r).y;
        };
        In* to = y.data() + rng() % 9;
        a.y = to, a.n = 3 * n, a.group = n, a.stream = trial >= 3 && trial <= 5;
        if (n > 0) row.grouped[op](a);
        for (int64_t i = 0; i < 3 * n; ++i) grouped &= same_number(to[i], expect(i, i / n));
        // Aligned or not; and few rows are divided.
        In* const aligned = y.data() + (64 - reinterpret_cast<uintptr_t>(y.data()) % 64) % 64 / sizeof(In);
        a.n = a.stride = n, a.rows = trial % 3 == 0 ? 1 : 3, a.y = trial < 5 ? aligned : to;
        row.columns[op](a);
        for (int64_t i = 0; i < a.rows * n; ++i)
          columns &= same_number(static_cast<const In*>(a.y)[i], expect(i, i % n));
      }
      a.y = y.data(), a.rows = 3;
      double ds = -1, dz = -1;
      row.learned_run({a, &ds, &dz});
      double lane_s[8] = {}, lane_z[8] = {};
      for (int64_t i = 0; i < n; ++i) {
        const FakeExpected<In> e(FakeOp::fake_backward, x[i], dy[i], scale[0], zero[0], r);
        lane_s[i % 8] += e.ds, lane_z[i % 8] += e.dz;
        runs &= same_number(y[i], e.y);
      }
      const auto fold = [](const double* l) {
        return ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7]));
      };
      runs &= same_number(ds, fold(lane_s)) && same_number(dz, fold(lane_z));
      std::vector<double> sums(n), zeros(n), want_s(n), want_z(n);
      row.learned_columns({a, sums.data(), zeros.data()});
      for (int64_t i = 0; i < 3 * n; ++i) {
        const FakeExpected<In> e(FakeOp::fake_backward, x[i], dy[i], scale[i % n], zero[i % n], r);
        want_s[i % n] += e.ds, want_z[i % n] += e.dz;
        learned_columns &= same_number(y[i], e.y);
      }
      for (int64_t i = 0; i < n; ++i)
        learned_columns &= same_number(sums[i], want_s[i]) && same_number(zeros[i], want_z[i]);
    }
  }
  const char* e = kElement[static_cast<int>(row.in)];
  report(grouped, label("fake_quant", isa, e, "", "grouped"));
  report(columns, label("fake_quant", isa, e, "", "columns"));
  report(runs, label("fake_quant", isa, e, "", "learned run"));
  report(learned_columns, label("fake_quant", isa, e, "", "learned columns"));
  test_masked<In>(row, isa);
  test_orders<In>(row, isa);
}

// Every 16-bit float, in runs of odd length, with and without a mask, and in place.
template <class In>
void test_all_halves(const FakeQuantRow& row, Isa isa) {
  constexpr int64_t n = (1 << 16) - 37, kPlain = static_cast<int>(FakeOp::fake);
  std::vector<In> all(1 << 16);
  for (size_t i = 0; i < all.size(); ++i) all[i].bits = static_cast<uint16_t>(i * 40503);  // odd: each of them once
  const CodeRange ranges[] = {{-128, 127}, {0, 255}, {-8, 7}, {-127, 127}, {0, 0}, {-300, 200}};
  const float scales[] = {0.03f, 0.0078125f, 0.065f, 1e-3f, 0x1p-20f, 700.0f, 0x1p100f, 0x1.fffffep-9f};
  bool numbers = true, masked = true, bits_good = true;
  int trial = 0;
  for (const CodeRange r : ranges) {
    for (const float s : scales) {
      const int32_t z = ++trial % 3 == 0 ? r.lo : trial % 3 == 1 ? r.hi : (r.lo + r.hi + 1) / 2;
      const In* x = all.data() + trial % 38;
      std::vector<In> y(x, x + n), also(n);
      std::vector<uint8_t> bits((n + 7) / 8);
      FakeQuantArgs a{};
      a.x = y.data(), a.y = y.data(), a.n = a.group = n, a.scale = &s, a.zero = &z, a.qmin = r.lo, a.qmax = r.hi;
      row.grouped[kPlain](a);
      a.x = x, a.y = also.data(), a.bits = bits.data();
      row.masked(a);
      for (int64_t i = 0; i < n; ++i) {
        const In want = FakeExpected<In>(FakeOp::fake, x[i], x[i], s, z, r).y;
        numbers &= same_number(y[i], want), masked &= same_number(also[i], want);
        const float steps = std::nearbyint(widen(x[i]) / s);
        bits_good &= (bits[i / 8] >> (i % 8) & 1) ==
                     (steps >= static_cast<float>(r.lo - z) && steps <= static_cast<float>(r.hi - z));
      }
      bits_good &= bits[n / 8] >> (n % 8) == 0;
    }
  }
  const char* e = kElement[static_cast<int>(row.in)];
  report(numbers, label("fake_quant", isa, e, "", "all 16-bit floats"));
  report(masked, label("fake_quant", isa, e, "", "all 16-bit floats, masked"));
  report(bits_good, label("fake_quant", isa, e, "", "bits of all 16-bit floats"));
}

}  // namespace

void test_fake_quant(Isa isa, bool half_stores) {
  for (const FakeQuantRow& row : fake_quant_rows(isa)) {
    if (row.in == Element::f32) test_fake_quant_row<float>(row, isa);
    if (row.in == Element::f64) test_fake_quant_row<double>(row, isa);
    if (row.in == Element::f16 && half_stores) test_fake_quant_row<half_t>(row, isa), test_all_halves<half_t>(row, isa);
    if (row.in == Element::bf16) test_fake_quant_row<bfloat_t>(row, isa), test_all_halves<bfloat_t>(row, isa);
  }
}

}  // namespace lowbit
