#include "drivers/elementwise/gradients.h"

#include <algorithm>
#include <cstring>

#include "base/arch.h"
#include "drivers/elementwise/chunks.h"

namespace lowbit {
namespace {

constexpr int64_t kTask = 32768;   // elements per task, about
constexpr int64_t kTaskRows = 32;  // or rows, where columns have scales of their own

const char* at_optional(const void* p, int64_t bytes) { return p ? at(p, bytes) : nullptr; }

// Whether reading and writing `bytes` bytes evicts from the caches what a later reader needs.
bool exceeds_caches(int64_t bytes) { return bytes >= 64 << 20; }

FakeQuantArgs common(const Affine& f) {
  FakeQuantArgs a{};
  a.qmin = f.qmin, a.qmax = f.qmax;
  return a;
}

// Where the elements of a scale lie. Without columns: runs of consecutive elements. With columns: tables of rows, one
// scale per column.
struct Sums {
  Granularity l;
  bool channel, columns;

  // A tensor is a single channel.
  explicit Sums(const Granularity& given)
      : l(given.kind == GranularityKind::tensor ? Granularity{GranularityKind::channel, 1, 1, given.elements(), 1}
                                                : given),
        channel(l.kind == GranularityKind::channel),
        columns(l.varying()) {}

  // Runs per line; where run r begins, its elements and its scale.
  int64_t lines() const { return channel ? 1 : l.outer; }
  int64_t runs() const { return channel ? l.outer * l.axis : l.groups(); }
  int64_t begin(int64_t r) const { return r * (channel ? l.inner : l.block); }
  int64_t length(int64_t r) const { return channel ? l.inner : std::min(l.block, l.axis - r * l.block); }
  int64_t scale(int64_t line, int64_t r) const { return channel ? r % l.axis : line * runs() + r; }
  int64_t blocks_per_run() const { return std::max<int64_t>(1, (length(0) + kSumBlock - 1) / kSumBlock); }

  // Tables, their columns, the rows of table t, and the bands per table.
  int64_t tables() const { return channel ? 1 : l.outer * l.groups(); }
  int64_t width() const { return channel ? l.axis : l.inner; }
  int64_t rows(int64_t t) const { return channel ? l.outer : std::min(l.block, l.axis - t % l.groups() * l.block); }
  int64_t first_row(int64_t t) const { return channel ? 0 : t / l.groups() * l.axis + t % l.groups() * l.block; }
  int64_t bands_per_table() const {
    const int64_t most = channel ? l.outer : std::min(l.block, l.axis);
    return std::max<int64_t>(1, (most + kBand - 1) / kBand);
  }

  int64_t pairs() const {
    if (l.elements() == 0) return 0;
    return columns ? tables() * bands_per_table() * width() : lines() * runs() * blocks_per_run();
  }
};

template <class T>
void narrow_sums(const double* ds, const double* dz, int64_t n, void* s, void* z) {
  for (int64_t i = 0; i < n; ++i) {
    static_cast<T*>(s)[i] = static_cast<T>(ds[i]);
    static_cast<T*>(z)[i] = static_cast<T>(dz[i]);
  }
}

}  // namespace

void fake_quant(FakeOp op, const Granularity& layout, const Affine& f, const void* x, const void* dy, void* y,
                Element e) {
  const FakeQuantRow& row = fake_quant_row(active_isa(), e);
  const int64_t n = layout.elements(), eb = element_bytes(e), sb = compute_bytes(e);
  const int64_t arrays = op == FakeOp::fake || op == FakeOp::scaled ? 2 : 3;
  const bool stream = exceeds_caches(n * eb * arrays) && y != x && y != dy;
  const int64_t task = layout.varying() ? std::max(kTask, kTaskRows * Sums(layout).width()) : kTask;
  for_each_chunk(n, task, [&](int64_t begin, int64_t end) {
    FakeQuantArgs a = common(f);
    a.stream = stream;
    const auto place = [&](int64_t start, int64_t scale) {
      a.x = at_optional(x, start * eb), a.dy = at_optional(dy, start * eb), a.y = at(y, start * eb);
      a.scale = at(f.scale, scale * sb), a.zero = f.zero + scale;
    };
    for_each_segment(
        layout, begin, end,
        [&](int64_t start, int64_t length, int64_t count, int64_t scale) {
          place(start, scale);
          a.n = length * count, a.group = length;
          row.grouped[static_cast<int>(op)](a);
        },
        [&](int64_t start, int64_t rows, int64_t stride, int64_t columns, int64_t scale) {
          place(start, scale);
          a.n = columns, a.rows = rows, a.stride = stride;
          row.columns[static_cast<int>(op)](a);
        });
  });
}

bool mask_fits(const Granularity& layout) {
  if (layout.kind == GranularityKind::tensor) return true;
  if (layout.varying()) return false;
  if (layout.kind == GranularityKind::channel) return layout.inner % 8 == 0;
  return layout.block % 8 == 0 && layout.axis % 8 == 0;
}

void fake_quant_masked(const Granularity& layout, const Affine& f, const void* x, void* y, uint8_t* bits, Element e) {
  const FakeQuantRow& row = fake_quant_row(active_isa(), e);
  const int64_t n = layout.elements(), eb = element_bytes(e), sb = compute_bytes(e);
  const bool stream = exceeds_caches(n * eb * 2) && y != x;
  for_each_chunk(n, kTask, [&](int64_t begin, int64_t end) {
    FakeQuantArgs a = common(f);
    a.stream = stream;
    for_each_segment(
        layout, begin, end,
        [&](int64_t start, int64_t length, int64_t count, int64_t scale) {
          a.x = at(x, start * eb), a.y = at(y, start * eb), a.bits = bits + start / 8;
          a.scale = at(f.scale, scale * sb), a.zero = f.zero + scale;
          a.n = length * count, a.group = length;
          row.masked(a);
        },
        [](int64_t, int64_t, int64_t, int64_t, int64_t) {});  // mask_fits: no columns
  });
}

void keep_where(const void* dy, const uint8_t* bits, void* y, int64_t n, Element e) {
  const FakeQuantRow& row = fake_quant_row(active_isa(), e);
  const int64_t eb = element_bytes(e);
  for_each_chunk(n, kTask, [&](int64_t begin, int64_t end) {
    row.keep(at(dy, begin * eb), bits + begin / 8, at(y, begin * eb), end - begin);
  });
}

int64_t learned_workspace(const Granularity& layout) { return 2 * Sums(layout).pairs() + 2 * layout.scales(); }

void fake_quant_learned(const Granularity& layout, const Affine& f, const void* x, const void* dy, void* dx, Element e,
                        double* partial, void* ds, void* dz) {
  const FakeQuantRow& row = fake_quant_row(active_isa(), e);
  const Sums sums(layout);
  const int64_t eb = element_bytes(e), sb = compute_bytes(e), pairs = sums.pairs(), scales = layout.scales();
  double *part_s = partial, *part_z = partial + pairs, *total_s = part_z + pairs, *total_z = total_s + scales;
  if (layout.elements() == 0) {  // sums of nothing
    std::memset(ds, 0, static_cast<size_t>(scales * sb)), std::memset(dz, 0, static_cast<size_t>(scales * sb));
    return;
  }
  std::fill(part_s, part_s + 2 * pairs + 2 * scales, 0.0);
  const auto place = [&](LearnedArgs& a, int64_t start, int64_t scale) {
    a.step.x = at(x, start * eb), a.step.dy = at(dy, start * eb), a.step.y = at(dx, start * eb);
    a.step.scale = at(f.scale, scale * sb), a.step.zero = f.zero + scale;
  };
  const auto in_tasks = [](int64_t units, int64_t elements_per_unit, auto&& unit) {
    const int64_t each = std::max<int64_t>(1, kTask / std::max<int64_t>(1, elements_per_unit));
    for_each_chunk(units, each, [&](int64_t begin, int64_t end) {
      for (int64_t u = begin; u < end; ++u) unit(u);
    });
  };
  const FpEnvironment environment;
  if (sums.columns) {
    const int64_t bands = sums.bands_per_table(), width = sums.width();
    in_tasks(sums.tables() * bands, kBand * width, [&](int64_t u) {
      const int64_t table = u / bands, first = u % bands * kBand, rows = sums.rows(table);
      if (first >= rows) return;
      LearnedArgs a{common(f), part_s + u * width, part_z + u * width};
      place(a, (sums.first_row(table) + first) * width, table * width);
      a.step.n = a.step.stride = width, a.step.rows = std::min(kBand, rows - first);
      row.learned_columns(a);
    });
    for (int64_t u = 0; u < sums.tables() * bands; ++u)
      for (int64_t c = 0; c < width; ++c) {
        total_s[u / bands * width + c] += part_s[u * width + c];
        total_z[u / bands * width + c] += part_z[u * width + c];
      }
  } else {
    const int64_t runs = sums.runs(), blocks = sums.blocks_per_run();
    in_tasks(sums.lines() * runs * blocks, std::min(sums.length(0), kSumBlock), [&](int64_t u) {
      const int64_t line = u / blocks / runs, run = u / blocks % runs, first = u % blocks * kSumBlock;
      const int64_t length = sums.length(run);
      if (first >= length) return;
      LearnedArgs a{common(f), part_s + u, part_z + u};
      place(a, line * layout.axis + sums.begin(run) + first, sums.scale(line, run));
      a.step.n = std::min(kSumBlock, length - first);
      row.learned_run(a);
    });
    for (int64_t r = 0; r < sums.lines() * runs; ++r) {
      double s = 0, z = 0;
      for (int64_t b = 0; b < blocks; ++b) s += part_s[r * blocks + b], z += part_z[r * blocks + b];
      const int64_t scale = sums.scale(r / runs, r % runs);
      total_s[scale] += s, total_z[scale] += z;
    }
  }
  if (e == Element::f64) {
    narrow_sums<double>(total_s, total_z, scales, ds, dz);
  } else {
    narrow_sums<float>(total_s, total_z, scales, ds, dz);
  }
}

}  // namespace lowbit
