// Granularity: which elements of a contiguous [outer, axis, inner] array share a scale. Scales have the shape
//   tensor   one                                   every element
//   channel  [axis]                                one index of the axis
//   group    [outer, ceil(axis / block), inner]    block consecutive indices of the axis
//
// for_each_segment cuts a flat range of elements into the two shapes that kernels take:
//   groups    consecutive runs of equal length, each under one scale, consecutive scales
//   rectangle rows of consecutive elements, each column under its own scale, consecutive scales
#pragma once
#include <algorithm>
#include <cstdint>

namespace lowbit {

enum class GranularityKind : int { tensor = 0, channel = 1, group = 2 };

struct Granularity {
  GranularityKind kind = GranularityKind::tensor;
  int64_t outer = 1, axis = 1, inner = 1;
  int64_t block = 1;  // group only

  int64_t elements() const { return outer * axis * inner; }
  int64_t groups() const { return (axis + block - 1) / block; }
  int64_t scales() const {
    if (kind == GranularityKind::tensor) return 1;
    return kind == GranularityKind::channel ? axis : outer * groups() * inner;
  }
  // Whether neighbours in memory have different scales.
  bool varying() const {
    if (kind == GranularityKind::channel) return inner == 1 && axis > 1;
    return kind == GranularityKind::group && inner > 1;
  }
};

// on_groups(start, length, count, scale index), on_rectangle(start, rows, stride, columns, scale index)
template <class Groups, class Rectangle>
void for_each_segment(const Granularity& l, int64_t begin, int64_t end, Groups&& on_groups, Rectangle&& on_rectangle) {
  if (begin >= end) return;
  if (l.kind == GranularityKind::tensor) {
    on_groups(begin, end - begin, int64_t{1}, int64_t{0});
    return;
  }
  const bool channel = l.kind == GranularityKind::channel;
  if (l.varying()) {
    // Rows of `columns` elements; a band of consecutive rows shares one row of scales.
    const int64_t columns = channel ? l.axis : l.inner;
    while (begin < end) {
      const int64_t row = begin / columns, column = begin % columns, o = row / l.axis, g = row % l.axis / l.block;
      const int64_t scale = channel ? 0 : (o * l.groups() + g) * columns;
      const int64_t band_rows = channel ? l.outer : o * l.axis + std::min(l.axis, (g + 1) * l.block);
      const int64_t band_end = std::min(end, band_rows * columns);
      if (column != 0 || begin + columns > band_end) {  // part of a row
        const int64_t stop = std::min(band_end, begin - column + columns);
        on_rectangle(begin, int64_t{1}, columns, stop - begin, scale + column);
        begin = stop;
      } else {
        const int64_t rows = (band_end - begin) / columns;
        on_rectangle(begin, rows, columns, columns, scale);
        begin += rows * columns;
      }
    }
    return;
  }
  // Runs of `length` elements in lines of `line` elements. A line starts at scale 0 (channel) or after the scales of
  // the line before (group), and may end with a short run.
  const int64_t length = channel ? l.inner : l.block;
  const bool unbroken = !channel && l.axis % l.block == 0;  // no short runs: one line
  const int64_t line = channel ? l.axis * l.inner : (unbroken ? l.elements() : l.axis);
  const int64_t scales_a_line = channel ? l.axis : l.groups();
  while (begin < end) {
    const int64_t at = begin % line, run = at / length, offset = at % length;
    const int64_t line_end = begin - at + line;
    const int64_t scale = (channel ? 0 : begin / line * scales_a_line) + run;
    const int64_t stop = std::min(end, line_end);
    const int64_t full = offset == 0 ? (stop - begin) / length : 0;
    if (full > 0) {
      on_groups(begin, length, full, scale);
      begin += full * length;
    } else {
      const int64_t part = std::min(stop, begin - offset + length) - begin;
      on_groups(begin, part, int64_t{1}, scale);
      begin += part;
    }
  }
}

}  // namespace lowbit
