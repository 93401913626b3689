// Ranges and sums over whole arrays, and the fused range + quantize + pack of groups.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/threads.h"
#include "drivers/elementwise/chunks.h"
#include "drivers/elementwise/elementwise.h"
#include "kernels/pack/pack.h"
#include "kernels/quantize/quantize.h"
#include "kernels/range/range.h"

namespace lowbit {
namespace {

constexpr int64_t kTask = 65536;             // elements that a task reads, about
constexpr int64_t kScratch = 8192;           // codes held in L1 before packing
constexpr int64_t kLongestGroup = 1 << 16;   // a longer one would not stay in L2 between its two reads
constexpr int64_t kColumns = 2048;           // columns of a rectangle reduced at once
constexpr int64_t kPrivateScales = 1 << 21;  // bound on the memory of private ranges

template <class T>
void clear(T* lo, T* hi, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    lo[i] = static_cast<T>(__builtin_inf());
    hi[i] = -static_cast<T>(__builtin_inf());
  }
}

template <class T>
void merge(const T* lo, const T* hi, int64_t n, T* into_lo, T* into_hi) {
  for (int64_t i = 0; i < n; ++i) {
    into_lo[i] = std::min(into_lo[i], lo[i]);
    into_hi[i] = std::max(into_hi[i], hi[i]);
  }
}

// Flat ranges a task may take: every group lies within one unit.
struct Units {
  const Granularity& layout;
  int64_t count() const {
    if (layout.kind == GranularityKind::group) return layout.outer * (layout.inner > 1 ? layout.groups() : 1);
    return layout.varying() ? layout.outer : layout.elements();
  }
  int64_t begin(int64_t u) const {
    if (layout.kind == GranularityKind::group && layout.inner > 1) {
      const int64_t g = layout.groups();
      return (u / g * layout.axis + std::min(layout.axis, u % g * layout.block)) * layout.inner;
    }
    return layout.kind == GranularityKind::group || layout.varying() ? u * layout.axis : u;
  }
};

// A group is reduced by the one task that owns it. A tensor or a channel extends over all tasks: each reduces into
// ranges of its own, which are merged at the end. Minimum and maximum do not depend on the order.
template <class T>
int64_t range_as(const Granularity& layout, const void* x, Element in, T* lo, T* hi) {
  const RangeRow& row = range_row(active_isa(), in);
  const int64_t n = layout.elements(), scales = layout.scales(), xb = element_bytes(in);
  clear(lo, hi, scales);
  if (n == 0) return 0;
  const bool owned = layout.kind == GranularityKind::group;
  const Units units{layout};
  int64_t tasks = std::min(units.count(), (n + kTask - 1) / kTask);
  if (!owned) tasks = std::min(tasks, std::max<int64_t>(1, kPrivateScales / scales));
  std::vector<T> private_lo, private_hi;
  if (!owned) {
    private_lo.resize(tasks * scales);
    private_hi.resize(tasks * scales);
  }
  std::atomic<int64_t> nan{0};
  parallel_for(tasks, [&](int64_t t) {
    T* task_lo = owned ? lo : private_lo.data() + t * scales;
    T* task_hi = owned ? hi : private_hi.data() + t * scales;
    if (!owned) clear(task_lo, task_hi, scales);
    int64_t nans = 0;
    RangeArgs a{};
    a.nan = &nans;
    for_each_segment(
        layout, units.begin(units.count() * t / tasks), units.begin(units.count() * (t + 1) / tasks),
        [&](int64_t start, int64_t length, int64_t count, int64_t scale) {
          for (int64_t g = 0; g < count; ++g) {
            T l, h;
            a.x = at(x, (start + g * length) * xb), a.n = length, a.lo = &l, a.hi = &h;
            row.run(a);
            merge(&l, &h, 1, task_lo + scale + g, task_hi + scale + g);
          }
        },
        [&](int64_t start, int64_t rows, int64_t stride, int64_t columns, int64_t scale) {
          for (int64_t c = 0; c < columns; c += kColumns) {
            a.x = at(x, (start + c) * xb), a.n = std::min(kColumns, columns - c), a.rows = rows, a.stride = stride;
            a.lo = task_lo + scale + c, a.hi = task_hi + scale + c;
            row.columns(a);
          }
        });
    nan += nans;
  });
  if (!owned)
    for (int64_t t = 0; t < tasks; ++t) merge(&private_lo[t * scales], &private_hi[t * scales], scales, lo, hi);
  return nan;
}

// A scale without elements gets the parameters of zeros.
DynamicResult unit_scales(const Granularity& layout, const DynamicArgs& d, Element in) {
  const int64_t n = layout.scales();
  if (in == Element::f64) std::fill_n(static_cast<double*>(d.scale), n, 1.0);
  if (in != Element::f64) std::fill_n(static_cast<float*>(d.scale), n, 1.0f);
  if (d.zero) std::fill_n(d.zero, n, std::min(std::max(0, d.qmin), d.qmax));
  return {};
}

// Scales and zero points of ranges, as numerics/ranges.py computes them.
template <class T>
int64_t parameters(const void* least_of, const void* greatest_of, int64_t n, const DynamicArgs& d, int32_t* zero) {
  const T *lo = static_cast<const T*>(least_of), *hi = static_cast<const T*>(greatest_of);
  T* scale = static_cast<T*>(d.scale);
  constexpr T least = static_cast<T>(0x1p-125), most_allowed = static_cast<T>(0x1.fffffep+127f / 65536.0f);
  const T qmin = static_cast<T>(d.qmin), qmax = static_cast<T>(d.qmax);
  int64_t bad = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (d.divisor > 0) {
      const T most = std::max(-lo[i], hi[i]);
      scale[i] = most > 0 ? std::max(most / static_cast<T>(d.divisor), least) : T{1};
      zero[i] = std::min(std::max(0, d.qmin), d.qmax);
    } else {
      const T l = std::min(lo[i], T{0}), h = std::max(hi[i], T{0});
      scale[i] = h > l ? std::max((h - l) / (qmax > qmin ? qmax - qmin : T{1}), least) : T{1};
      const T z = std::rint(h > l ? qmin - l / scale[i] : T{0});
      zero[i] = static_cast<int32_t>(std::min(std::max(z, qmin), qmax));
    }
    bad += !(scale[i] <= most_allowed);
  }
  return bad;
}

// Range, parameters, codes and packing of each group in one read of the data; where fused_groups_fit.
DynamicResult quantize_groups(const Granularity& layout, const DynamicArgs& d, const void* x, Element in, void* q) {
  const Isa isa = active_isa();
  const int bits = code_bits(d.code);
  const QuantizeRow& row = quantize_row(isa, in, unpacked_code(d.code));
  const int64_t xb = element_bytes(in), sb = compute_bytes(in);
  std::atomic<int64_t> nan{0}, bad{0};

  const int64_t line = layout.kind == GranularityKind::channel ? layout.inner : layout.axis;
  for_each_chunk(layout.elements() / line, std::max<int64_t>(1, kTask / line), [&](int64_t begin, int64_t end) {
    alignas(64) uint8_t buffer[kLongestGroup];
    int64_t nans = 0, bads = 0;
    DynamicGroupsArgs a{};
    a.qmin = d.qmin, a.qmax = d.qmax, a.divisor = d.divisor, a.nan = &nans, a.bad_scale = &bads;
    for_each_segment(
        layout, begin * line, end * line,
        [&](int64_t start, int64_t length, int64_t count, int64_t scale) {
          a.nibbles = bits == 4 && row.nibble_block != 0 && length % row.nibble_block == 0;
          const bool pack = bits < 8 && !a.nibbles;
          // As many groups at once as L1 holds codes of before they are packed.
          const int64_t step = pack ? std::max<int64_t>(1, kScratch / length) : count;
          a.group = length;
          for (int64_t g = 0; g < count; g += step) {
            const int64_t first = start + g * length;
            char* out = at(q, first * bits / 8);
            a.n = length * std::min(step, count - g);
            a.x = at(x, first * xb), a.q = pack ? static_cast<void*>(buffer) : out;
            a.scale = at(d.scale, (scale + g) * sb), a.zero = d.zero ? d.zero + scale + g : nullptr;
            row.dynamic(a);
            if (pack) pack_row(isa, bits).pack(buffer, a.n, reinterpret_cast<uint8_t*>(out));
          }
        },
        [](int64_t, int64_t, int64_t, int64_t, int64_t) {});
    nan += nans;
    bad += bads;
  });
  return {nan, bad};
}

}  // namespace

int64_t range(const Granularity& layout, const void* x, Element in, void* lo, void* hi) {
  if (in == Element::f64) return range_as(layout, x, in, static_cast<double*>(lo), static_cast<double*>(hi));
  return range_as(layout, x, in, static_cast<float*>(lo), static_cast<float*>(hi));
}

void mean_abs(const void* x, Element in, int64_t length, int64_t count, double* out) {
  if (count == 0) return;
  const RangeRow& row = range_row(active_isa(), in);
  const int64_t xb = element_bytes(in), blocks = (length + kSumBlock - 1) / kSumBlock;
  std::vector<double> part(blocks * count);
  const int64_t task = std::max<int64_t>(1, kTask / std::min(length, kSumBlock));
  for_each_chunk(blocks * count, task, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t start = i % blocks * kSumBlock;
      part[i] = row.sum_abs(at(x, (i / blocks * length + start) * xb), std::min(kSumBlock, length - start));
    }
  });
  const FpEnvironment environment;
  for (int64_t c = 0; c < count; ++c) {
    double sum = 0;
    for (int64_t b = 0; b < blocks; ++b) sum += part[c * blocks + b];
    out[c] = sum / static_cast<double>(length);
  }
}

bool fused_groups_fit(const Granularity& layout, Code code) {
  if (layout.kind == GranularityKind::tensor || layout.varying()) return false;
  const int64_t length = layout.kind == GranularityKind::channel ? layout.inner : layout.block;
  const int64_t line = layout.kind == GranularityKind::channel ? layout.axis * layout.inner : layout.axis;
  if (layout.kind == GranularityKind::channel && layout.outer != 1) return false;  // a channel is not contiguous
  const int64_t bits = code_bits(code);
  return code != Code::b1 && length <= kLongestGroup && length * bits % 8 == 0 && line * bits % 8 == 0;
}

int64_t dynamic_workspace(const Granularity& layout, Element in) {
  return layout.scales() * (2 * compute_bytes(in) + 4);
}

DynamicResult quantize_from_data(const Granularity& layout, const DynamicArgs& d, const void* x, Element in, void* q,
                                 void* workspace) {
  if (layout.elements() == 0) return unit_scales(layout, d, in);
  if (fused_groups_fit(layout, d.code) && d.qmin <= 0 && d.qmax > 0) return quantize_groups(layout, d, x, in, q);
  const int64_t n = layout.scales(), width = compute_bytes(in);
  char *lo = static_cast<char*>(workspace), *hi = lo + n * width;
  int32_t* zero = d.zero ? d.zero : reinterpret_cast<int32_t*>(hi + n * width);
  DynamicResult result;
  result.nan = range(layout, x, in, lo, hi);
  if (result.nan != 0) return result;
  const FpEnvironment environment;
  result.bad_scale =
      in == Element::f64 ? parameters<double>(lo, hi, n, d, zero) : parameters<float>(lo, hi, n, d, zero);
  if (result.bad_scale == 0) quantize(layout, {d.code, d.scale, zero, d.qmin, d.qmax}, x, in, q);
  return result;
}

}  // namespace lowbit
