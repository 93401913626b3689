// Cuts the output into tiles of rows and columns, makes each tile's table of pointers to pixels of x, and gives the
// kernels one output row of a tile at a time.
#include "drivers/dwconv.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "base/fp_environment.h"
#include "base/threads.h"

namespace lowbit {
namespace {

constexpr int64_t kTileWork = 1 << 19;   // multiplications of a tile, about
constexpr int64_t kTileColumns = 512;    // pointers in a row of a table, about
constexpr int64_t kTableEntries = 8192;  // pointers in a table, about
constexpr int64_t kStaged = 4096;        // sums or codes held in L1 before they go on, about

int64_t aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }

// Which places of x some outputs along one axis see. Neighbours share them where their windows overlap without gaps;
// else each output has places of its own. Either way tap k of output o is entry o * step() + k.
struct Axis {
  int64_t size, before, kernel, stride, dilation;
  bool shared() const { return dilation == 1 && stride <= kernel; }
  int64_t step() const { return shared() ? stride : kernel; }
  int64_t entries(int64_t outputs) const { return (outputs - 1) * step() + kernel; }
  int64_t run() const { return shared() ? INT64_MAX : kernel; }  // entries that follow each other by `dilation` places
  int64_t place(int64_t first_output, int64_t entry) const {     // in x; outside of [0, size) is padding
    if (shared()) return first_output * stride + entry - before;
    return (first_output + entry / kernel) * stride + entry % kernel * dilation - before;
  }
};

// Copies n bytes; in steps of eight if that many may be read and written.
void copy_few(char* to, const char* from, int64_t n, bool in_steps) {
  if (!in_steps) {
    std::memmove(to, from, n);
    return;
  }
  for (int64_t i = 0; i < n; i += 8) std::memcpy(to + i, from + i, 8);
}
int64_t in_eights(int64_t n) { return (n + 7) / 8 * 8; }

struct Plan {
  const DwconvShape& shape;
  const DwconvWeights& weights;
  Axis vertical, horizontal;
  int64_t channels;                            // as kernels see them: no fewer than a block
  int64_t pixels, rows;                        // of a tile, in the output
  int64_t staged_pixels;                       // of one output row at once, where they are staged
  int64_t table, copies, staged, slot, fixed;  // bytes

  Plan(const DwconvShape& s, const DwconvWeights& w)
      : shape(s),
        weights(w),
        vertical{s.height, s.top, s.kh, s.stride_h, s.dilation_h},
        horizontal{s.width, s.left, s.kw, s.stride_w, s.dilation_w},
        channels(std::max<int64_t>(s.channels, w.row->block)) {
    const auto within = [](int64_t wanted, int64_t most) { return std::max<int64_t>(1, std::min(wanted, most)); };
    pixels = within(kTileColumns / horizontal.step(), s.out_width());
    const int64_t columns = horizontal.entries(pixels);
    rows = within(std::min(kTileWork / (pixels * channels * s.kh * s.kw), kTableEntries / (columns * vertical.step())),
                  s.out_height());
    staged_pixels = within(kStaged / channels, pixels);
    const int64_t entries = vertical.entries(rows) * columns;
    table = aligned(entries * static_cast<int64_t>(sizeof(void*)));
    copies = narrow() ? aligned(entries * channels) : 0;
    staged = aligned(staged_pixels * channels * 4);
    slot = table + copies + staged;
    // Offsets, multipliers and the pixel of padding; a last block of channels is a whole one.
    fixed = 2 * aligned((channels + w.row->block) * 4) + aligned(channels);
  }
  bool narrow() const { return channels > shape.channels; }
};

// How a run of sums [pixels][channels] leaves: as sums, as codes, or by a call.
struct Sink {
  void* y = nullptr;
  const DwconvRequantize* requantize = nullptr;
  DwconvFinish finish = nullptr;
  void* context = nullptr;
  int64_t bytes() const { return requantize != nullptr ? 1 : 4; }
};

class Run {
 public:
  Run(const Plan& plan, const DwconvInput& input, const Sink& sink, char* fixed)
      : plan_(plan), shape_(plan.shape), input_(input), sink_(sink) {
    const DwconvWeights& w = plan.weights;
    const int64_t n = shape_.channels, arranged = aligned((plan.channels + w.row->block) * 4);
    std::vector<int32_t> offset(plan.channels, 0);
    for (int64_t c = 0; c < n; ++c)  // wraps where the bias does: together they fit
      offset[c] = static_cast<int32_t>(static_cast<uint32_t>(input.bias != nullptr ? input.bias[c] : 0) -
                                       static_cast<uint32_t>(input.zero) * static_cast<uint32_t>(w.sum[c]));
    w.row->arrange(offset.data(), plan.channels, fixed);
    args_.offset = reinterpret_cast<const int32_t*>(fixed);
    if (sink.requantize != nullptr) {
      const DwconvRequantize& r = *sink.requantize;
      std::vector<float> multiplier(plan.channels, 0.0f);
      std::copy(r.multiplier, r.multiplier + n, multiplier.begin());
      w.row->arrange(multiplier.data(), plan.channels, fixed + arranged);
      args_.multiplier = reinterpret_cast<const float*>(fixed + arranged);
      args_.zero = r.zero, args_.qmin = r.qmin, args_.qmax = r.qmax, args_.is_signed = r.is_signed;
    }
    padding_ = fixed + 2 * arranged;
    std::memset(padding_, input.zero, plan.channels);
    args_.channels = plan.channels, args_.weights = w.packed.data()->elements;
    args_.kh = shape_.kh, args_.kw = shape_.kw, args_.stride = plan.horizontal.step();
    row_run_ = sink.requantize != nullptr ? w.row->codes : w.row->sums;
    tiles_h_ = (shape_.out_height() + plan.rows - 1) / plan.rows;
    tiles_w_ = (shape_.out_width() + plan.pixels - 1) / plan.pixels;
  }

  int64_t tiles() const { return shape_.batch * tiles_h_ * tiles_w_; }

  void tile(int64_t index, char* slot) const {
    const int64_t image = index / (tiles_h_ * tiles_w_);
    const int64_t oy = index / tiles_w_ % tiles_h_ * plan_.rows, ox = index % tiles_w_ * plan_.pixels;
    const int64_t rows = std::min(plan_.rows, shape_.out_height() - oy);
    const int64_t pixels = std::min(plan_.pixels, shape_.out_width() - ox);
    const int64_t columns = plan_.horizontal.entries(pixels);
    const auto** table = reinterpret_cast<const void**>(slot);
    fill(image, oy, rows, ox, columns, table, slot + plan_.table);
    DwconvArgs a = args_;
    a.row_step = columns;
    for (int64_t r = 0; r < rows; ++r) {
      a.x = table + r * plan_.vertical.step() * columns;
      row(a, (image * shape_.out_height() + oy + r) * shape_.out_width() + ox, pixels, slot);
    }
  }

 private:
  void fill(int64_t image, int64_t oy, int64_t rows, int64_t ox, int64_t columns, const void** table,
            char* copies) const {
    const int64_t n = shape_.channels, line = shape_.width * n;
    const char* x = static_cast<const char*>(input_.x) + image * shape_.height * line;
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
    const auto reaching = [&](int64_t place) {  // entries before the first one at `place` or after it
      return std::max<int64_t>(0, std::min(count, (place - first + by - 1) / by));
    };
    const int64_t inside = first >= 0 ? 0 : reaching(0), after = first >= size ? 0 : reaching(size);
    for (int64_t j = 0; j < inside; ++j) table[j] = padding_;
    for (int64_t j = inside; j < after; ++j) table[j] = line + (first + j * by) * shape_.channels;
    for (int64_t j = std::max(inside, after); j < count; ++j) table[j] = padding_;
  }

  // Pixels with fewer channels than fill a vector: with room after each. What is in it has no weight and goes nowhere.
  void copy_apart(int64_t columns, const void** table, char* copies) const {
    const int64_t n = shape_.channels;
    const char* end = static_cast<const char*>(input_.x) + shape_.batch * shape_.height * shape_.width * n;
    for (int64_t j = 0; j < columns; ++j, copies += plan_.channels) {
      const char* pixel = static_cast<const char*>(table[j]);
      if (pixel == padding_) continue;
      copy_few(copies, pixel, n, end - pixel >= in_eights(n));
      table[j] = copies;
    }
  }

  void row(DwconvArgs& a, int64_t first, int64_t pixels, char* slot) const {
    const int64_t n = shape_.channels, bytes = sink_.bytes();
    char* y = static_cast<char*>(sink_.y) + first * n * bytes;
    if (!plan_.narrow() && sink_.finish == nullptr) {
      a.pixels = pixels, a.y = y;
      row_run_(a);
      return;
    }
    char* staged = slot + plan_.table + plan_.copies;
    const void* const* x = a.x;
    for (int64_t p = 0; p < pixels; p += plan_.staged_pixels) {
      a.pixels = std::min(plan_.staged_pixels, pixels - p), a.y = staged, a.x = x + p * a.stride;
      row_run_(a);
      if (plan_.narrow()) {  // closes the gaps, in place for a call
        char* to = sink_.finish != nullptr ? staged : y + p * n * bytes;
        const int64_t size = n * bytes, total = a.pixels * size;
        for (int64_t i = 0; i < a.pixels; ++i)
          copy_few(to + i * size, staged + i * plan_.channels * bytes, size, i * size + in_eights(size) <= total);
      }
      if (sink_.finish != nullptr)
        sink_.finish(sink_.context, first + p, a.pixels, reinterpret_cast<const int32_t*>(staged));
    }
  }

  const Plan& plan_;
  const DwconvShape& shape_;
  const DwconvInput& input_;
  const Sink& sink_;
  DwconvArgs args_{};
  char* padding_;
  void (*row_run_)(const DwconvArgs&);
  int64_t tiles_h_, tiles_w_;
};

void run(const DwconvShape& shape, const DwconvWeights& weights, const DwconvInput& input, const Sink& sink,
         void* workspace, int64_t bytes) {
  if (shape.outputs() == 0) return;
  const Plan plan(shape, weights);
  char* fixed = static_cast<char*>(workspace) + (64 - reinterpret_cast<uintptr_t>(workspace) % 64) % 64;
  const Run job(plan, input, sink, fixed);
  const int64_t slots = std::min((bytes - 63 - plan.fixed) / plan.slot, job.tiles());
  std::atomic<int64_t> next{0};
  parallel_for(slots, [&](int64_t s) {  // a slot is a thread's own place to work in, not a share of the work
    const FpEnvironment environment;
    for (int64_t t = next++; t < job.tiles(); t = next++) job.tile(t, fixed + plan.fixed + s * plan.slot);
  });
}

}  // namespace

DwconvWeights dwconv_prepack(Isa isa, Code x_code, const DwconvShape& shape, Code w_code, const void* w,
                             const int32_t* zero) {
  const Axis horizontal{shape.width, shape.left, shape.kw, shape.stride_w, shape.dilation_w};
  DwconvWeights made{};
  made.row = &dwconv_row(isa, x_code, shape.kh, shape.kw, horizontal.step());
  made.channels = shape.channels, made.kh = shape.kh, made.kw = shape.kw;
  made.stride_w = shape.stride_w, made.dilation_w = shape.dilation_w;
  const int64_t channels = std::max<int64_t>(shape.channels, made.row->block), taps = shape.kh * shape.kw;
  std::vector<int16_t> shifted(channels * taps, 0);
  made.sum.assign(shape.channels, 0);
  for (int64_t c = 0; c < shape.channels; ++c)
    for (int64_t t = 0; t < taps; ++t) {
      const int64_t i = c * taps + t;
      const int code = w_code == Code::s8 ? static_cast<const int8_t*>(w)[i] : static_cast<const uint8_t*>(w)[i];
      shifted[i] = static_cast<int16_t>(code - (zero != nullptr ? zero[c] : 0));
      made.sum[c] += shifted[i];
    }
  made.packed.resize((made.row->packed(channels, shape.kh, shape.kw) + 31) / 32);
  made.row->pack(shifted.data(), channels, shape.kh, shape.kw, made.packed.data()->elements);
  return made;
}

int64_t dwconv_workspace(const DwconvShape& shape, const DwconvWeights& weights, int threads) {
  if (shape.outputs() == 0) return 0;
  const Plan plan(shape, weights);
  return 63 + plan.fixed + plan.slot * std::max(1, threads);
}

void dwconv_sums(const DwconvShape& shape, const DwconvWeights& weights, const DwconvInput& input, int32_t* y,
                 void* workspace, int64_t bytes) {
  run(shape, weights, input, {.y = y}, workspace, bytes);
}
void dwconv_codes(const DwconvShape& shape, const DwconvWeights& weights, const DwconvInput& input,
                  const DwconvRequantize& requantize, void* y, void* workspace, int64_t bytes) {
  run(shape, weights, input, {.y = y, .requantize = &requantize}, workspace, bytes);
}
void dwconv_each(const DwconvShape& shape, const DwconvWeights& weights, const DwconvInput& input, DwconvFinish finish,
                 void* context, void* workspace, int64_t bytes) {
  run(shape, weights, input, {.finish = finish, .context = context}, workspace, bytes);
}

}  // namespace lowbit
