#include "drivers/elementwise/shortcut.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <tuple>
#include <vector>

#include "base/fp_environment.h"

namespace lowbit {
namespace {

constexpr int kPairs = 1 << 16;

// All pairs of codes, a slowest, both as s8 from -128 up, and the exact codes of the result.
struct AllPairs {
  std::vector<uint8_t> a, b, codes, tried;
  const AddMulRow& row;
  AddMulArgs k;

  AllPairs(const AddMulRow& r, const AddMulArgs& args)
      : a(kPairs), b(kPairs), codes(kPairs), tried(kPairs), row(r), k(args) {
    for (int i = 0; i < 256; ++i) {
      std::memset(&a[i * 256], i ^ (k.a_signed ? 0x80 : 0), 256);
      b[i] = static_cast<uint8_t>(i ^ (k.b_signed ? 0x80 : 0));
    }
    for (int i = 1; i < 256; ++i) std::memcpy(&b[i * 256], b.data(), 256);
    k.a = a.data(), k.b = b.data(), k.n = kPairs;
    k.q = codes.data();
    row.exact(k);
  }
  int centre() const { return row.code == Code::s8 ? 0 : 128; }
  bool shown(const AddMulShortcut& s) {
    k.q = tried.data(), k.shortcut = &s;
    row.shortcut(k);
    return std::memcmp(tried.data(), codes.data(), kPairs) == 0;
  }
};

// With t = a * A + b * B + c, floor(t + 1/2) is the code of every pair exactly if c lies in an interval. Each pair
// bounds it: from below unless its code is qmin, from above unless it is qmax.
class Bounds {
 public:
  Bounds(const AllPairs& pairs, double a, double b) : codes_(pairs.codes.data()), a_(a), b_(b) {
    centre_ = pairs.row.code == Code::s8 ? 0x80 : 0;
    least_ = static_cast<uint8_t>(pairs.k.qmin ^ centre_), most_ = static_cast<uint8_t>(pairs.k.qmax ^ centre_);
    std::fill(lo_, lo_ + 256, -INFINITY), std::fill(hi_, hi_ + 256, INFINITY);
    for (int x = 0; x < 256; ++x)  // a maximum per column, so that the loop is vectorized
      for (int y = 0; y < 256; ++y) {
        const double lower = below(x, y), upper = above(x, y);
        lo_[y] = lo_[y] < lower ? lower : lo_[y];
        hi_[y] = hi_[y] > upper ? upper : hi_[y];
      }
    lo = *std::max_element(lo_, lo_ + 256), hi = *std::min_element(hi_, hi_ + 256);
  }
  double lo, hi;

  // Collects the bounds within `margin` of the tightest; false if there are too many.
  bool collect(double margin, size_t most) {
    for (int y = 0; y < 256; ++y) {
      if (lo_[y] > lo - margin)
        for (int x = 0; x < 256; ++x)
          if (below(x, y) > lo - margin) lower_.push_back({below(x, y), x - 128, y - 128});
      if (hi_[y] < hi + margin)
        for (int x = 0; x < 256; ++x)
          if (above(x, y) < hi + margin) upper_.push_back({above(x, y), x - 128, y - 128});
      if (lower_.size() + upper_.size() > most) return false;
    }
    return true;
  }
  // The interval for A + da and B + db, from the collected bounds.
  std::pair<double, double> moved(double da, double db) const {
    double first = -INFINITY, last = INFINITY;
    for (const Bound& k : lower_) first = std::max(first, k.c - (da * k.a + db * k.b));
    for (const Bound& k : upper_) last = std::min(last, k.c - (da * k.a + db * k.b));
    return {first, last};
  }

 private:
  struct Bound {
    double c;
    int a, b;
  };
  double tie(int x, int y, int q) const { return (q - 128 - 0.5) - (a_ * (x - 128) + b_ * (y - 128)); }
  // q: as u8, which is s8 + 128
  int code(int x, int y) const { return codes_[x * 256 + y] ^ centre_; }
  double below(int x, int y) const { return code(x, y) > least_ ? tie(x, y, code(x, y)) : -INFINITY; }
  double above(int x, int y) const { return code(x, y) < most_ ? tie(x, y, code(x, y)) + 1 : INFINITY; }

  const uint8_t* codes_;
  double a_, b_;
  int centre_, least_, most_;
  double lo_[256], hi_[256];
  std::vector<Bound> lower_, upper_;
};

// Writes A, B and an offset as digits; false where they do not fit the planes.
bool encode(AddMulShortcut& s, int64_t a, int64_t b, int64_t offset) {
  using S = AddMulShortcut;
  for (int k = 0; k < s.planes; ++k) {
    const int shift = S::kDigit * (s.planes - 1 - k);
    const int64_t mask = k == 0 ? ~int64_t{0} : (1 << S::kDigit) - 1;
    const int64_t da = (a >> shift) & mask, db = (b >> shift) & mask;
    if (da < 0 || da > 127 || db < 0 || db > 127) return false;
    s.a[k] = static_cast<uint8_t>(da), s.b[k] = static_cast<uint8_t>(db);
  }
  const int digits = std::min(s.planes, S::kOffsets);
  for (int k = 0; k < digits; ++k) {
    const int shift = S::kDigit * (digits - 1 - k);
    const int64_t unit = int64_t{1} << shift, digit = (offset + unit / 2) >> shift;
    offset -= digit * unit;
    if (digit < -32768 || digit > 32767) return false;
    // A lower plane must not overflow: 128 times each digit, the offset, and a carry from below.
    if (k > 0 && 128 * (s.a[k] + s.b[k]) + std::abs(digit) + 256 > 32767) return false;
    s.offset[k] = static_cast<int16_t>(digit);
  }
  return true;
}

// Chooses an offset in the interval, 0 if possible, for A and B in s.planes planes; false where there is none.
bool settle(AddMulShortcut& s, int64_t a, int64_t b, double lo, double hi) {
  const int finest = std::min(s.planes, AddMulShortcut::kOffsets) - 1;
  const double granule = std::ldexp(1.0, -(s.fraction + AddMulShortcut::kDigit * finest));
  const double first = std::ceil(lo / granule), last = std::ceil(hi / granule) - 1;
  if (!(first <= last) || std::abs(first) > 1e9 || std::abs(last) > 1e9) return false;
  const double offset = first <= 0 && last >= 0 ? 0 : std::floor((first + last) / 2);
  return encode(s, a, b, static_cast<int64_t>(offset));
}

AddMulShortcut find_for_add(AllPairs& pairs) {
  using S = AddMulShortcut;
  constexpr int kReach = 4;             // neighbours of the nearest A and B that are tried, in each direction
  constexpr size_t kMostBounds = 4096;  // more bounds mean thousands of ties, which rounding errors decide
  const double ra = static_cast<double>(pairs.k.sa) / pairs.k.sy, rb = static_cast<double>(pairs.k.sb) / pairs.k.sy;
  S s;
  for (s.fraction = 8; s.fraction > 0 && std::ldexp(std::max(ra, rb), s.fraction) >= 127.9;) --s.fraction;
  if (s.fraction < 1) return S{};
  const auto bits_of = [&](int planes) { return s.fraction + S::kDigit * (planes - 1); };
  const auto in_planes = [&](double r, int planes) { return std::llround(std::ldexp(r, bits_of(planes))); };

  // Three planes suffice for most scales, with the nearest A and B for most of those; fewer where digits are 0.
  const int64_t a = in_planes(ra, 3), b = in_planes(rb, 3);
  const double near_a = std::ldexp(static_cast<double>(a), -bits_of(3));
  const double near_b = std::ldexp(static_cast<double>(b), -bits_of(3));
  Bounds bounds(pairs, near_a, near_b);
  for (s.planes = 1; s.planes <= 3; ++s.planes) {
    const int64_t rest = (int64_t{1} << (S::kDigit * (3 - s.planes))) - 1;
    if (((a | b) & rest) != 0) continue;
    const int shift = S::kDigit * (3 - s.planes);
    if (settle(s, a >> shift, b >> shift, bounds.lo, bounds.hi) && pairs.shown(s)) return s;
  }
  const double step = std::ldexp(1.0, -bits_of(3));
  if (!bounds.collect(256 * (kReach + 0.5) * step, kMostBounds)) return S{};
  for (s.planes = 3; s.planes <= S::kPlanes; ++s.planes)
    for (int i = -kReach; i <= kReach; ++i)
      for (int j = -kReach; j <= kReach; ++j) {
        const int64_t move_a = in_planes(ra, s.planes) + i, move_b = in_planes(rb, s.planes) + j;
        const auto [lo, hi] = bounds.moved(std::ldexp(static_cast<double>(move_a), -bits_of(s.planes)) - near_a,
                                           std::ldexp(static_cast<double>(move_b), -bits_of(s.planes)) - near_b);
        if (settle(s, move_a, move_b, lo, hi) && pairs.shown(s)) return s;
      }
  return S{};
}

// The integer parts of the contributions of a and b to the code, and which pairs carry. The equation rounds
// intermediate results, so carries are counted in its exact codes. Where a code is clipped, the carry has no effect,
// and that of real arithmetic is used.
AddMulShortcut find_table(AllPairs& pairs) {
  const AddMulArgs& k = pairs.k;
  const double ra = static_cast<double>(k.sa) / k.sy, rb = static_cast<double>(k.sb) / k.sy;
  if (!(std::max(ra, rb) < 4)) return {};  // 8-bit codes cannot resolve such ratios
  const int qmin = k.qmin - pairs.centre(), qmax = k.qmax - pairs.centre();
  double part_a[256], part_b[256];
  int whole_a[256], whole_b[256], count[256] = {}, column[256] = {};
  const auto split = [](double v, int& whole) {
    whole = static_cast<int>(std::floor(v));
    return v - whole;
  };
  for (int i = 0; i < 256; ++i) {  // in the order of pairs
    const auto value = [i](bool is_signed) { return is_signed ? i - 128 : i; };
    part_a[i] = split(ra * (value(k.a_signed) - k.za) + (k.zy - pairs.centre()) + 0.5, whole_a[i]);
    part_b[i] = split(rb * (value(k.b_signed) - k.zb), whole_b[i]);
  }
  for (int i = 0; i < 256; ++i)
    for (int j = 0; j < 256; ++j) {
      const int code = static_cast<int8_t>(pairs.codes[i * 256 + j] ^ pairs.centre());
      const bool is_seen = code > qmin && code < qmax;
      const int carry = is_seen ? code - whole_a[i] - whole_b[j] : part_a[i] + part_b[j] >= 1;
      if (carry < 0 || carry > 1) return {};
      count[i] += carry, column[j] += carry;
    }
  int places[256];
  for (int j = 0; j < 256; ++j) places[j] = j;
  std::sort(places, places + 256, [&](int x, int y) { return column[x] > column[y]; });
  // Both must fit s8, with room for a carry: an integer is moved from b to a so that b is centred.
  const auto [least, most] = std::minmax_element(whole_b, whole_b + 256);
  const int middle = (*least + *most) / 2;
  const auto byte = [](int v) { return static_cast<uint8_t>(std::clamp(v, -128, 126)); };
  AddMulShortcut s;
  s.by_table = true;
  const uint8_t first_a = k.a_signed ? 0x80 : 0, first_b = k.b_signed ? 0x80 : 0;
  for (int i = 0; i < 256; ++i) {
    const bool always = count[i] == 256;
    s.whole_a[i ^ first_a] = byte(whole_a[i] + middle + always);
    s.count[i ^ first_a] = static_cast<uint8_t>(always ? 0 : count[i]);
    s.whole_b[i ^ first_b] = byte(whole_b[i] - middle);
    s.place[places[i] ^ first_b] = static_cast<uint8_t>(i);
  }
  return pairs.shown(s) ? s : AddMulShortcut{};
}

AddMulShortcut find_for_mul(AllPairs& pairs) {
  constexpr int kReach = 6;  // neighbours of the nearest ratio that are tried, in each direction
  AddMulShortcut s;
  const float nearest = static_cast<float>(static_cast<double>(pairs.k.sa) * pairs.k.sb / pairs.k.sy);
  if (!std::isfinite(nearest) || nearest == 0) return s;
  s.planes = 1;
  s.shift = static_cast<float>(pairs.k.zy - pairs.centre());
  for (int i = 0; i <= 2 * kReach; ++i) {
    s.ratio = nearest;
    for (int step = 0; step < (i + 1) / 2; ++step) s.ratio = std::nextafter(s.ratio, i % 2 ? INFINITY : 0.0f);
    if (pairs.shown(s)) return s;
  }
  return AddMulShortcut{};
}

struct CachedShortcut {
  int64_t seen = 0;
  bool settled = false;
  AddMulShortcut found;
};

}  // namespace

AddMulShortcut find_shortcut(const AddMulRow& row, const AddMulArgs& k) {
  if (row.shortcut == nullptr) return {};
  const FpEnvironment environment;
  AllPairs pairs(row, k);
  if (row.has_tables)
    if (const AddMulShortcut found = find_table(pairs); found.exists()) return found;
  return row.op == AddMulOp::add ? find_for_add(pairs) : find_for_mul(pairs);
}

const AddMulShortcut* cached_shortcut(Isa isa, const AddMulRow& row, const AddMulArgs& k, int64_t n) {
  constexpr size_t kCached = 64;
  if (row.shortcut == nullptr) return nullptr;
  const auto bits = [](float x) { return std::bit_cast<uint32_t>(x); };  // ordered even where x is NaN
  std::tuple key{isa,        row.op, row.code, k.a_signed, k.b_signed, bits(k.sa), bits(k.sb),
                 bits(k.sy), k.za,   k.zb,     k.zy,       k.qmin,     k.qmax};
  static thread_local std::map<decltype(key), CachedShortcut> known;
  if (known.size() == kCached && !known.contains(key)) known.clear();
  CachedShortcut& r = known[key];
  r.seen += n;
  if (!r.settled && r.seen >= kShortcutAfter) r.found = find_shortcut(row, k), r.settled = true;
  return r.found.exists() ? &r.found : nullptr;
}

}  // namespace lowbit
