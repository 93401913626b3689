// Depthwise convolution: cuts the output into tiles, builds each tile's table of pointers to pixels of x, and runs the
// kernel on one output row of a tile at a time.
#include <algorithm>
#include <cstring>

#include "base/fp_environment.h"
#include "base/threads.h"
#include "drivers/conv/conv.h"

namespace lowbit {
namespace {

constexpr int64_t kTileWork = 1 << 19;   // multiplications per tile
constexpr int64_t kTileColumns = 512;    // pointers per row of a table
constexpr int64_t kTableEntries = 8192;  // pointers per table
constexpr int64_t kStaged = 4096;        // accumulators or codes staged in L1

// The positions of x that outputs along one axis read. Outputs share entries where windows overlap without gaps; else
// each output has its own. Tap k of output o is entry o * step() + k.
struct Axis {
  int64_t size, before, kernel, stride, dilation;
  bool shared() const { return dilation == 1 && stride <= kernel; }
  int64_t step() const { return shared() ? stride : kernel; }
  int64_t entries(int64_t outputs) const { return (outputs - 1) * step() + kernel; }
  int64_t run() const { return shared() ? INT64_MAX : kernel; }  // consecutive entries, `dilation` positions apart
  int64_t place(int64_t first_output, int64_t entry) const {     // in x; outside of [0, size) is padding
    if (shared()) return first_output * stride + entry - before;
    return (first_output + entry / kernel) * stride + entry % kernel * dilation - before;
  }
};

Axis across(const Window& s) { return {s.width, s.left, s.kernel_w, s.stride_w, s.dilation_w}; }

// Copies n bytes, in steps of eight where those bytes may be read and written.
void copy_few(char* to, const char* from, int64_t n, bool in_steps) {
  if (!in_steps) {
    std::memmove(to, from, n);
    return;
  }
  for (int64_t i = 0; i < n; i += 8) std::memcpy(to + i, from + i, 8);
}

struct Plan {
  const Window& shape;
  const DwconvRow& row;
  Axis vertical, horizontal;
  int64_t channels;                 // at least a kernel block
  int64_t padded;                   // rounded up to kernel blocks
  int64_t pixels, rows;             // of a tile of the output
  int64_t staged_pixels;            // of an output row that are staged at once
  int64_t entries, copies, staged;  // pointers; bytes of copied pixels; bytes of accumulators

  Plan(const Window& s, const DwconvWeights& w)
      : shape(s),
        row(*w.row),
        vertical{s.height, s.top, s.kernel_h, s.stride_h, s.dilation_h},
        horizontal(across(s)),
        channels(std::max<int64_t>(s.channels, row.block)),
        padded(round_up(channels, row.block)) {
    const auto within = [](int64_t wanted, int64_t most) { return std::max<int64_t>(1, std::min(wanted, most)); };
    pixels = within(kTileColumns / horizontal.step(), s.out_width());
    const int64_t columns = horizontal.entries(pixels);
    rows = within(std::min(kTileWork / (pixels * channels * s.taps()), kTableEntries / (columns * vertical.step())),
                  s.out_height());
    staged_pixels = within(kStaged / channels, pixels);
    entries = vertical.entries(rows) * columns;
    copies = narrow() ? entries * channels : 0;
    staged = (staged_pixels * channels + kEpiloguePad) * 4;
  }
  bool narrow() const { return channels > shape.channels; }
  int64_t thread_bytes() const {
    return lines(entries * static_cast<int64_t>(sizeof(void*))) + lines(copies) + lines(staged);
  }
  // Offsets and multipliers, given and rearranged, and a pixel of padding.
  int64_t call_bytes() const { return 4 * lines(padded * 4) + lines(channels); }
};

// One call. Results are int32 or codes, as the kernel writes them, or floats, which an epilogue makes of staged int32.
class Run {
 public:
  Run(const Plan& plan, const DwconvWeights& w, const void* x, int32_t zero, const Epilogue& f, void* y)
      : plan_(plan),
        shape_(plan.shape),
        x_(static_cast<const char*>(x)),
        y_(static_cast<char*>(y)),
        result_(f.result),
        to_floats_(f.result != Result::s32 && f.result < Result::s8 ? &epilogue_row(active_isa(), f.result) : nullptr),
        block_(aligned<char>(plan.call_bytes())),
        tiles_h_(ceil_div(shape_.out_height(), plan.rows)),
        tiles_w_(ceil_div(shape_.out_width(), plan.pixels)) {
    const int64_t n = shape_.channels;
    std::memset(block_.get(), 0, static_cast<size_t>(plan.call_bytes()));
    Cutter cut(block_.get());
    int32_t *offset = cut.take<int32_t>(plan.padded), *offsets = cut.take<int32_t>(plan.padded);
    float *by = cut.take<float>(plan.padded), *multipliers = cut.take<float>(plan.padded);
    padding_ = cut.take<char>(plan.channels);
    std::memset(padding_, zero, static_cast<size_t>(plan.channels));
    for (int64_t c = 0; c < n; ++c)  // may wrap; the complete accumulator fits
      offset[c] = static_cast<int32_t>(static_cast<uint32_t>(f.add != nullptr ? f.add[c] : 0) -
                                       static_cast<uint32_t>(zero) * static_cast<uint32_t>(w.sum[c]));
    plan.row.arrange(offset, plan.channels, offsets);
    args_.channels = plan.channels, args_.weights = w.packed.get(), args_.offset = offsets;
    args_.kh = shape_.kernel_h, args_.kw = shape_.kernel_w, args_.stride = plan.horizontal.step();
    kernel_ = f.result >= Result::s8 ? plan.row.codes : plan.row.sums;
    const FpEnvironment environment;  // for scales of channels
    if (to_floats_ != nullptr) {
      scale_.resize(round_up(n, kEpiloguePad)), bias_.resize(scale_.size());
      column_scales(f, n, scale_.data());
      if (f.bias != nullptr) std::copy(f.bias, f.bias + n, bias_.begin());
      float_args_.n = float_args_.acc_stride = float_args_.out_stride = n;
      float_args_.scale = scale_.data(), float_args_.bias = f.bias == nullptr ? nullptr : bias_.data();
      float_args_.floor = f.floor, float_args_.ceiling = f.ceiling;
    } else if (f.result >= Result::s8) {
      column_scales(f, n, by);
      plan.row.arrange(by, plan.channels, multipliers);
      args_.multiplier = multipliers;
      args_.zero = f.zero, args_.qmin = f.lo, args_.qmax = f.hi, args_.is_signed = f.result == Result::s8;
    }
  }

  int64_t tiles() const { return shape_.batch * tiles_h_ * tiles_w_; }

  void tile(int64_t index) const {
    const int64_t image = index / (tiles_h_ * tiles_w_);
    const int64_t oy = index / tiles_w_ % tiles_h_ * plan_.rows, ox = index % tiles_w_ * plan_.pixels;
    const int64_t rows = std::min(plan_.rows, shape_.out_height() - oy);
    const int64_t pixels = std::min(plan_.pixels, shape_.out_width() - ox);
    const int64_t columns = plan_.horizontal.entries(pixels);
    Cutter cut(thread_block(plan_.thread_bytes()));
    const auto** table = cut.take<const void*>(plan_.entries);
    char *copies = cut.take<char>(plan_.copies), *staged = cut.take<char>(plan_.staged);
    fill(image, oy, rows, ox, columns, table, copies);
    DwconvArgs a = args_;
    a.row_step = columns;
    for (int64_t r = 0; r < rows; ++r) {
      a.x = table + r * plan_.vertical.step() * columns;
      row(a, (image * shape_.out_height() + oy + r) * shape_.out_width() + ox, pixels, staged);
    }
  }

 private:
  void fill(int64_t image, int64_t oy, int64_t rows, int64_t ox, int64_t columns, const void** table,
            char* copies) const {
    const int64_t n = shape_.channels, line = shape_.width * n;
    const char* x = x_ + image * shape_.height * line;
    for (int64_t i = 0; i < plan_.vertical.entries(rows); ++i, table += columns) {
      const int64_t y = plan_.vertical.place(oy, i);
      if (y < 0 || y >= shape_.height) {
        std::fill(table, table + columns, padding_);
        continue;
      }
      for (int64_t j = 0; j < columns; j += plan_.horizontal.run())
        fill_run(x + y * line, plan_.horizontal.place(ox, j), std::min(plan_.horizontal.run(), columns - j), table + j);
      if (plan_.narrow()) copy_apart(columns, table, copies + i * columns * plan_.channels);
    }
  }

  void fill_run(const char* line, int64_t first, int64_t count, const void** table) const {
    const int64_t by = plan_.horizontal.dilation, size = shape_.width;
    const auto reaching = [&](int64_t place) {  // entries before the first at or after `place`
      return std::max<int64_t>(0, std::min(count, (place - first + by - 1) / by));
    };
    const int64_t inside = first >= 0 ? 0 : reaching(0), after = first >= size ? 0 : reaching(size);
    for (int64_t j = 0; j < inside; ++j) table[j] = padding_;
    for (int64_t j = inside; j < after; ++j) table[j] = line + (first + j * by) * shape_.channels;
    for (int64_t j = std::max(inside, after); j < count; ++j) table[j] = padding_;
  }

  // Copies pixels with fewer channels than a vector, with padding after each, whose weights are 0.
  void copy_apart(int64_t columns, const void** table, char* copies) const {
    const int64_t n = shape_.channels;
    const char* end = x_ + shape_.batch * shape_.height * shape_.width * n;
    for (int64_t j = 0; j < columns; ++j, copies += plan_.channels) {
      const char* pixel = static_cast<const char*>(table[j]);
      if (pixel == padding_) continue;
      copy_few(copies, pixel, n, end - pixel >= round_up(n, 8));
      table[j] = copies;
    }
  }

  void row(DwconvArgs& a, int64_t first, int64_t pixels, char* staged) const {
    const int64_t n = shape_.channels, bytes = to_floats_ != nullptr ? 4 : result_bytes(result_);
    char* y = y_ + first * n * result_bytes(result_);
    if (!plan_.narrow() && to_floats_ == nullptr) {
      a.pixels = pixels, a.y = y;
      kernel_(a);
      return;
    }
    const void* const* x = a.x;
    for (int64_t p = 0; p < pixels; p += plan_.staged_pixels) {
      a.pixels = std::min(plan_.staged_pixels, pixels - p), a.y = staged, a.x = x + p * a.stride;
      kernel_(a);
      char* out = y + p * n * result_bytes(result_);
      if (plan_.narrow()) {  // drop the padding, in place for the epilogue
        char* to = to_floats_ != nullptr ? staged : out;
        const int64_t size = n * bytes, total = a.pixels * size;
        for (int64_t i = 0; i < a.pixels; ++i)
          copy_few(to + i * size, staged + i * plan_.channels * bytes, size, i * size + round_up(size, 8) <= total);
      }
      if (to_floats_ != nullptr) {
        EpilogueArgs f = float_args_;
        f.acc = staged, f.rows = a.pixels, f.out = out;
        to_floats_->run(f);
      }
    }
  }

  const Plan& plan_;
  const Window& shape_;
  const char* x_;
  char* y_;
  Result result_;
  const EpilogueRow* to_floats_;  // null: the kernel writes the result
  Aligned<char> block_;
  int64_t tiles_h_, tiles_w_;
  char* padding_;
  DwconvArgs args_{};
  void (*kernel_)(const DwconvArgs&);
  EpilogueArgs float_args_{};
  std::vector<float> scale_, bias_;  // of float_args_, padded
};

}  // namespace

DwconvWeights::DwconvWeights(Isa isa, Code x_code, const Window& shape, Code w_code, const void* w, const int32_t* zero)
    : window(shape) {
  const int64_t channels = shape.channels, taps = shape.taps(), kh = shape.kernel_h, kw = shape.kernel_w;
  row = &dwconv_row(isa, x_code, kh, kw, across(shape).step());
  const int64_t room = std::max<int64_t>(channels, row->block);
  std::vector<int16_t> shifted(room * taps, 0);
  sum.assign(channels, 0);
  for (int64_t c = 0; c < channels; ++c)
    for (int64_t t = 0; t < taps; ++t) {
      const int64_t i = c * taps + t;
      const int code = w_code == Code::s8 ? static_cast<const int8_t*>(w)[i] : static_cast<const uint8_t*>(w)[i];
      shifted[i] = static_cast<int16_t>(code - (zero != nullptr ? zero[c] : 0));
      sum[c] += shifted[i];
    }
  elements = row->packed(room, kh, kw);
  packed = aligned<int16_t>(elements);
  row->pack(shifted.data(), room, kh, kw, packed.get());
}

void dwconv(const Window& shape, const DwconvWeights& weights, const void* x, int32_t zero, const Epilogue& epilogue,
            void* y) {
  if (shape.pixels() * shape.channels == 0) return;
  const Plan plan(shape, weights);
  const Run run(plan, weights, x, zero, epilogue, y);
  parallel_for(run.tiles(), [&](int64_t t) { run.tile(t); });
}

int64_t dwconv_workspace(const Window& shape, const DwconvWeights& weights) {
  if (shape.pixels() * shape.channels == 0) return 0;
  const Plan plan(shape, weights);
  return num_threads() * plan.thread_bytes() + plan.call_bytes();
}

}  // namespace lowbit
