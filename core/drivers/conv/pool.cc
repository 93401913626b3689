// Both poolings reduce the rows of a window first (a row is width * channels codes), then the columns: kernel_w runs of
// `channels` codes.
#include "drivers/conv/pool.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/arch.h"
#include "base/memory.h"
#include "base/threads.h"
#include "kernels/pool/pool.h"

namespace lowbit {
namespace {

constexpr int64_t kTaskBytes = 1 << 16;  // codes that a task reads at least
constexpr int64_t kRows = 64;            // rows reduced at once
constexpr int64_t kWideRun = 32;         // longer runs are reduced one window at a time

// A padded row, whose padding is written once, and a second row.
template <class T>
struct RowScratch {
  std::vector<T> padded, across;
  T* inside;
  RowScratch(const Window& p, T padding)
      : padded((p.left + p.width + p.right) * p.channels, padding),
        across(padded.size()),
        inside(padded.data() + p.left * p.channels) {}
};

// Calls row(scratch, i, rows) for output row i, counted through all images; rows: the input rows of its windows.
template <class T, class Row>
void for_each_output_row(const Window& p, const void* x, T padding, Row&& row) {
  const int64_t line = p.width * p.channels, total = p.batch * p.out_height();
  const int64_t per_task = std::max<int64_t>(1, kTaskBytes / (p.kernel_h * line));
  parallel_for(ceil_div(total, per_task), [&](int64_t task) {
    RowScratch<T> scratch(p, padding);
    std::vector<const void*> rows;
    for (int64_t i = task * per_task; i < std::min(total, (task + 1) * per_task); ++i) {
      const int64_t image = i / p.out_height(), from = i % p.out_height() * p.stride_h - p.top;
      rows.clear();
      for (int64_t h = std::max<int64_t>(0, from); h < std::min(p.height, from + p.kernel_h); ++h)
        rows.push_back(static_cast<const uint8_t*>(x) + (image * p.height + h) * line);
      row(scratch, i, rows);
    }
  });
}

// Keeps every stride-th of the windows at all positions, in increasing order: out may be `windows`.
template <class T>
void keep_strided(const T* windows, const Window& p, T* out) {
  const int64_t d = p.channels, step = p.stride_w * d;
  for (int64_t j = 0; j < p.out_width(); ++j)
    for (int64_t c = 0; c < d; ++c) out[j * d + c] = windows[j * step + c];
}

// Whether to reduce the windows at all positions, in long runs, although the stride skips some.
bool takes_every_window(const Window& p) { return p.channels < kWideRun && p.kernel_w <= 16 && p.stride_w <= 8; }

// Reduces the columns of every window. reduce(first, n, to): n elements of windows from column `first` on.
template <class T, class Reduce>
void reduce_across(const Window& p, T* room, T* out, const Reduce& reduce) {
  const int64_t d = p.channels, width = p.out_width();
  if (p.stride_w == 1) {
    reduce(0, width * d, out);
  } else if (takes_every_window(p)) {
    reduce(0, ((width - 1) * p.stride_w + 1) * d, room);
    keep_strided(room, p, out);
  } else {
    for (int64_t j = 0; j < width; ++j) reduce(j * p.stride_w, d, out + j * d);
  }
}

// The maximum of any number of rows, kRows per pass; each pass begins with the result of the one before.
void largest(const PoolRow& row, const std::vector<const void*>& rows, int64_t n, void* out) {
  const void* some[kRows];
  const int64_t count = static_cast<int64_t>(rows.size());
  for (int64_t done = 0; done < count;) {
    int64_t m = 0;
    if (done > 0) some[m++] = out;
    while (m < kRows && done < count) some[m++] = rows[done++];
    row.largest({some, m, n, out});
  }
}

}  // namespace

void max_pool(const Window& p, Code code, const void* x, void* q) {
  if (p.batch == 0 || p.channels == 0) return;
  const PoolRow& row = pool_row(active_isa(), code);
  const uint8_t lowest = code == Code::s8 ? 0x80 : 0;
  const int64_t d = p.channels, out_line = p.out_width() * d;
  for_each_output_row<uint8_t>(p, x, lowest,
                               [&](RowScratch<uint8_t>& s, int64_t i, const std::vector<const void*>& rows) {
                                 largest(row, rows, p.width * d, s.inside);
                                 uint8_t* out = static_cast<uint8_t*>(q) + i * out_line;
                                 std::vector<const void*> shifted(p.kernel_w);
                                 reduce_across(p, s.across.data(), out, [&](int64_t first, int64_t n, uint8_t* to) {
                                   for (int64_t k = 0; k < p.kernel_w; ++k)
                                     shifted[k] = s.padded.data() + (first + k) * d;
                                   largest(row, shifted, n, to);
                                 });
                               });
}

void average_pool(const Window& p, const AverageParams& f, Code code, const void* x, Code out_code, void* q) {
  if (p.batch == 0 || p.channels == 0) return;
  const PoolRow &in = pool_row(active_isa(), code), &out = pool_row(active_isa(), out_code);
  const int64_t d = p.channels, out_width = p.out_width();
  const auto columns_inside = [&](int64_t j) {
    const int64_t from = j * p.stride_w - p.left;
    return std::min(p.width, from + p.kernel_w) - std::max<int64_t>(0, from);
  };
  for_each_output_row<int32_t>(p, x, 0, [&](RowScratch<int32_t>& s, int64_t i, const std::vector<const void*>& rows) {
    const int64_t down = static_cast<int64_t>(rows.size());
    in.total({rows.data(), down, p.width * d, s.inside});
    int32_t* sums = s.across.data();
    reduce_across(p, sums, sums, [&](int64_t first, int64_t n, int32_t* to) {
      const int32_t* from = s.padded.data() + first * d;
      std::copy(from, from + n, to);
      for (int64_t k = 1; k < p.kernel_w; ++k)
        for (int64_t c = 0; c < n; ++c) to[c] += from[k * d + c];
    });
    for (int64_t j = 0, end; j < out_width; j = end) {  // windows with as many columns inside share a factor
      for (end = j + 1; end < out_width && columns_inside(end) == columns_inside(j);) ++end;
      const int64_t places = down * columns_inside(j);
      const int64_t count = f.count_padding ? p.taps() : places;
      AverageArgs k{};
      k.sum = sums + j * d, k.n = (end - j) * d;
      k.q = static_cast<uint8_t*>(q) + (i * out_width + j) * d;
      k.zero = static_cast<int32_t>(places * f.z), k.by = (f.s / static_cast<float>(count)) / f.sy;
      k.zy = f.zy, k.qmin = f.qmin, k.qmax = f.qmax;
      out.average(k);
    }
  });
}

}  // namespace lowbit
