#include "drivers/gemm/gemm.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/fp_environment.h"
#include "base/threads.h"
#include "drivers/gemm/gemm_tasks.h"
#include "simd/vec.h"

namespace lowbit {
namespace {

constexpr int64_t kPieceBytes = kTaskRows * kGemmDepth * 2;  // of packed rows
constexpr int64_t kStripBytes = 1 << 18;                     // lines of an image that are copied at once, at most
constexpr int64_t kMostSegments = 64;
constexpr int64_t kSums = kTaskRows * (kMaxBlocks + 1) * kGemmCols;    // of a task, whose rows may be a line apart
constexpr int64_t kMostColumns = kTaskRows * kTaskBlocks * kGemmCols;  // of a task of one row, at once
constexpr int64_t kFetchedCodes = kTaskRows * kGemmDepth;
constexpr int64_t kPackedAtOnce = 4 << 20;  // bytes of all rows together, if they are packed before any task

// Quads of sums that are written as they are made, a few rows at a time where all would crowd L1: if they are so short,
// that takes longer than reading the columns again. Threads wait longer for their lines.
constexpr int64_t kQuicklyMade = 32, kQuicklyMadeByThreads = 96;

int64_t operand_bytes(GemmOperand a) { return a == GemmOperand::s16 ? 2 : 1; }

struct Workspace {
  char* a;           // packed rows, or a strip of lines
  int32_t *add, *c;  // what sums begin with, a column each; sums
  int64_t* total;    // of sums beyond int32
  int32_t *row_sum, *row_zero;
  uint8_t* codes;
};

int64_t workspace_bytes(bool wide) {
  return lines(std::max(kPieceBytes, kStripBytes)) + lines(kMostColumns * 4) + lines(kSums * 4) +
         (wide ? lines(kSums * 8) : 0) + 2 * lines(kTaskRows * 4) + lines(kFetchedCodes);
}

Workspace workspace(bool wide) {
  Cutter cut(thread_block(workspace_bytes(wide)));
  Workspace w;
  w.a = cut.take<char>(std::max(kPieceBytes, kStripBytes));
  w.add = cut.take<int32_t>(kMostColumns);
  w.c = cut.take<int32_t>(kSums);
  w.total = wide ? cut.take<int64_t>(kSums) : nullptr;
  w.row_sum = cut.take<int32_t>(kTaskRows);
  w.row_zero = cut.take<int32_t>(kTaskRows);
  w.codes = cut.take<uint8_t>(kFetchedCodes);
  return w;
}

// Everything that is the same for all tasks, padded as kernels read it.
struct Columns {
  Aligned<float> scale, bias;
};

template <class T>
Aligned<T> padded(const T* from, int64_t n, int64_t size, bool repeat) {
  Aligned<T> to = aligned<T>(size);
  T* end = repeat ? std::fill_n(to.get(), n, from[0]) : std::copy_n(from, n, to.get());
  std::fill(end, to.get() + size, T(0));
  return to;
}

// In vectors that every x86-64 and ARM CPU has, several at a time: it must take no time beside the product.
uint8_t greatest(const uint8_t* codes, int64_t n) {
  typedef uint8_t Vector __attribute__((vector_size(16)));
  constexpr int64_t kSide = 4, kStep = kSide * static_cast<int64_t>(sizeof(Vector));
  Vector most[kSide] = {};
  int64_t i = 0;
  for (; i + kStep <= n; i += kStep) {
    for (int64_t j = 0; j < kSide; ++j) {
      Vector v;
      std::memcpy(&v, codes + i + j * static_cast<int64_t>(sizeof(v)), sizeof(v));
      most[j] = v > most[j] ? v : most[j];
    }
  }
  uint8_t found = 0;
  for (; i < n; ++i) found = std::max(found, codes[i]);
  for (const Vector& v : most)
    for (size_t k = 0; k < sizeof(v); ++k) found = std::max(found, v[k]);
  return found;
}

// Of all codes: in pieces, large ones where there are many.
uint8_t greatest(const CodeRows& a, int64_t k) {
  constexpr int64_t kPieces = 64, kLeast = 1 << 16;
  const bool is_run = a.codes == nullptr || a.stride == k;
  const uint8_t* from = a.codes == nullptr ? a.source : a.codes;
  const int64_t n = a.codes == nullptr ? a.source_bytes : a.rows * a.stride;
  const int64_t step = round_up(std::max(kLeast, (n + kPieces - 1) / kPieces), is_run ? 1 : a.stride);
  uint8_t most[kPieces + 1] = {};
  parallel_for((n + step - 1) / step, [&](int64_t i) {
    const int64_t first = i * step, end = std::min(n, first + step);
    if (is_run) {
      most[i] = greatest(from + first, end - first);
    } else {
      for (int64_t at = first; at < end; at += a.stride) most[i] = std::max(most[i], greatest(from + at, k));
    }
  });
  if (a.codes == nullptr) most[kPieces] = a.also;
  return *std::max_element(most, most + kPieces + 1);
}

// The index of the fastest kernel for these codes. They are looked at where a faster one may come of it.
int chosen(const CodeRows& a, const PackedMatrix& b, const GemmRow* kernels) {
  const int any = b.kernel(255), small = b.kernel(127);
  if (a.is_signed || kernels[any].run == kernels[small].run) return any;
  return b.kernel(greatest(a, b.k));
}

class Product {
 public:
  Product(const CodeRows& a, const PackedMatrix& b, const Epilogue& epilogue, void* out, int64_t stride)
      : a_(a),
        b_(b),
        finish_(epilogue),
        out_(static_cast<char*>(out)),
        stride_(stride),
        isa_(active_isa()),
        kernels_(gemm_rows(isa_)),
        kernel_(kernels_[chosen(a, b, kernels_)]),
        row_(finish_row(isa_, epilogue.result)),
        is_paired_(has_roomy_first_cache()),
        is_alone_(worthwhile_threads(b, a.rows) == 1),
        wide_(epilogue.wide || b.k > kExactK),
        task_rows_(task_rows(kernel_, b, a.rows, epilogue.result)),
        task_blocks_(task_blocks(b, a.rows, row_tasks(), epilogue.result, !wide_ && a.lines == nullptr)) {
    shift_ = 0;
    if (kernel_.a == GemmOperand::u8 && a.is_signed) shift_ = 128;
    if (kernel_.a == GemmOperand::s8 && !a.is_signed) shift_ = -128;
    const int64_t size = b.blocks * kGemmCols;
    if (epilogue.result != Result::s32) {
      columns_.scale = padded(epilogue.scale, b.n, size, !epilogue.scale_per_column);
      if (!epilogue.scale_per_row) {
        const float row = epilogue.row_scale == nullptr ? 1.0f : epilogue.row_scale[0];
        const float step = epilogue.result >= Result::s8 ? epilogue.out_scale : 1.0f;
        for (int64_t i = 0; i < b.n; ++i) columns_.scale[i] = row * columns_.scale[i] / step;
      }
    }
    if (epilogue.bias != nullptr) columns_.bias = padded(epilogue.bias, b.n, size, false);
    // By one thread alone: what another one has packed comes slowly from its caches.
    if (is_alone_ && column_tasks() > 1 && a.rows > kFewRows && a.codes != nullptr && !wide_ &&
        !reads_codes(a.stride, b.k == b.quads * 4))
      pack_all();
  }

  int64_t tasks() const { return row_tasks() * column_tasks(); }

  void task(int64_t i) const {
    const FpEnvironment environment;
    // A thread has a run of tasks. Those that share columns of b follow one another, so that they are read from memory
    // once; where threads share rows, those that share rows do.
    const bool by_rows = !is_alone_ && shares_rows(b_, finish_.result);
    const int64_t row = (by_rows ? i / column_tasks() : i % row_tasks()) * task_rows_,
                  block = (by_rows ? i % column_tasks() : i / row_tasks()) * task_blocks_;
    const int64_t rows = std::min(task_rows_, a_.rows - row), blocks = std::min(task_blocks_, b_.blocks - block);
    const Workspace w = workspace(wide_);
    if (a_.zero_per_row)
      for (int64_t r = 0; r < rows; ++r) w.row_zero[r] = a_.zero[row + r] + shift_;
    if (reads_lines()) return by_lines(w, row, rows, block, blocks);
    std::fill_n(w.row_sum, rows, 0);
    if (wide_) return beyond_int32(w, row, rows, block, blocks);
    const int64_t at_once = b_.quads > b_.piece ? blocks : blocks_at_once(rows, blocks);
    const bool crowds = is_crowded(stride_ * 4, rows);
    const bool is_place = finish_.result == Result::s32 && rows % kernel_.at_once == 0 && (!by_rows || !crowds);
    const int64_t quick = is_alone_ ? kQuicklyMade : kQuicklyMadeByThreads;
    int64_t quad = 0;
    do {
      const int64_t quads = std::min(b_.piece, b_.quads - quad);
      GemmArgs x{};
      if (quads > 0) pack(w, row, rows, quad, quads, x);
      for (int64_t first = block, count; first < block + blocks; first += count) {
        count = std::min(at_once, block + blocks - first);
        // Sums that are the result go to their place, but for a last block whose padding would go beyond it, and one
        // more if two are taken at a time.
        if (is_place && (first + count) * kGemmCols > b_.n) {
          const int64_t apart = is_paired_ && count % 2 == 0 ? 2 : 1;
          if (count > apart) count -= apart;
        }
        const bool in_place = is_place && (first + count) * kGemmCols <= b_.n;
        x.c = in_place ? reinterpret_cast<int32_t*>(out_) + row * stride_ + first * kGemmCols : w.c;
        x.c_stride = in_place ? stride_ : roomy(count * kGemmCols * 4) / 4;
        if (quad == 0) begin_sums(w, first, count);
        x.from = quad > 0 ? x.c : w.add;
        x.from_stride = quad > 0 ? x.c_stride : 0;
        if (quads > 0) {
          multiply(x, quad, quads, first, count, in_place && crowds && quads <= quick ? kFewRows : rows);
        } else {
          for (int64_t r = 0; r < rows; ++r) std::copy_n(x.from, count * kGemmCols, x.c + r * x.c_stride);
        }
        if (quad + quads < b_.quads || (in_place && !b_.has_zero && !a_.zero_per_row)) continue;  // nothing is left
        finish_rows_of(w, x, row, rows, 0, first, count);
      }
      quad += b_.piece;
    } while (quad < b_.quads);
  }

 private:
  // Whether rows are read from lines of an image. What they add up to, which zero points of b need, is then not known.
  bool reads_lines() const {
    return a_.lines != nullptr && !wide_ && !b_.has_zero && kernel_.at_once == 1 &&
           a_.lines->segment_count <= kMostSegments && a_.lines->pitch <= kFetchedCodes &&
           strip_bytes(1) <= kStripBytes;
  }
  // Of so many lines of results. Kernels read whole steps, beyond the last code by less than one.
  int64_t strip_bytes(int64_t results) const {
    const LineRows& l = *a_.lines;
    return (((results - 1) * l.line_step + l.window) * l.pitch + kGemmQuads * 4) * operand_bytes(kernel_.a);
  }

  // The segments of a window that lie in quads [first, first + quads), as the kernel reads them.
  int64_t segments_of(int64_t first, int64_t quads, GemmSegment (&found)[kMostSegments]) const {
    int64_t count = 0, at = 0;
    for (int64_t s = 0; s < a_.lines->segment_count; ++s) {
      const GemmSegment& all = a_.lines->segments[s];
      const int64_t begin = std::max(first, at), end = std::min(first + quads, at + all.quads);
      if (begin < end) found[count++] = {(all.offset + (begin - at) * 4) * operand_bytes(kernel_.a), end - begin};
      at += all.quads;
    }
    return count;
  }

  void by_lines(const Workspace& w, int64_t row, int64_t rows, int64_t block, int64_t blocks) const {
    const LineRows& l = *a_.lines;
    const int64_t bytes = operand_bytes(kernel_.a), columns = blocks * kGemmCols, image = l.width * l.height;
    GemmArgs x{};
    x.a_stride = l.step * bytes, x.c_stride = columns, x.paired = is_paired_;
    begin_sums(w, block, blocks);
    int64_t most = 1;  // lines of results whose strip fits
    while (most < kTaskRows && strip_bytes(most + 1) <= kStripBytes) ++most;
    for (int64_t first = row; first < row + rows;) {
      // Of one image, and not more than fit.
      const int64_t line = first / l.width;
      const int64_t end = std::min({row + rows, (first / image + 1) * image, (line + most) * l.width});
      const int64_t results = (end - 1) / l.width - line + 1;
      for (int64_t i = 0; i < (results - 1) * l.line_step + l.window; ++i) {
        uint8_t* codes =
            kernel_.a == GemmOperand::u8 && !a_.is_signed ? reinterpret_cast<uint8_t*>(w.a) + i * l.pitch : w.codes;
        l.fetch(a_.context, line, i, codes);
        if (codes == w.codes) kernel_.pack_a(codes, l.pitch, a_.is_signed, false, w.a + i * l.pitch * bytes, l.pitch);
      }
      for (int64_t quad = 0; quad < b_.quads; quad += b_.piece) {
        GemmSegment segments[kMostSegments];
        const int64_t quads = std::min(b_.piece, b_.quads - quad);
        x.segments = segments, x.segment_count = segments_of(quad, quads, segments);
        for (int64_t r = first; r < end; r += x.rows) {
          x.rows = std::min(end, (r / l.width + 1) * l.width) - r;
          x.a = w.a + ((r / l.width - line) * l.line_step * l.pitch + r % l.width * l.step) * bytes;
          x.c = w.c + (r - first) * columns;
          x.from = quad > 0 ? x.c : w.add, x.from_stride = quad > 0 ? columns : 0;
          multiply(x, quad, quads, block, blocks, x.rows);
          if (quad + quads == b_.quads) finish_rows_of(w, x, r, x.rows, r - row, block, blocks);
        }
      }
      first = end;
    }
  }

  int64_t row_tasks() const { return (a_.rows + task_rows_ - 1) / task_rows_; }
  int64_t column_tasks() const { return (b_.blocks + task_blocks_ - 1) / task_blocks_; }

  // Blocks of a task whose sums have room at once, where k is one piece: nearly equal parts of all.
  int64_t blocks_at_once(int64_t rows, int64_t blocks) const {
    const int64_t room = kTaskRows * kTaskBlocks / round_up(rows, kernel_.at_once) / 2 * 2;
    const int64_t parts = (blocks + room - 1) / room;
    return round_up((blocks + parts - 1) / parts, 2);
  }

  // What sums of these blocks begin with: the zero point of a, and an integer bias. By each thread for itself, since
  // what another has written comes slowly from its caches.
  void begin_sums(const Workspace& w, int64_t block, int64_t blocks) const {
    const int64_t first = block * kGemmCols, size = blocks * kGemmCols;
    const int32_t* column = b_.column.data() + first;
    const uint32_t zero = a_.zero_per_row ? 0u : static_cast<uint32_t>(a_.zero[0] + shift_);
    for (int64_t i = 0; i < size; ++i) w.add[i] = static_cast<int32_t>(0u - zero * static_cast<uint32_t>(column[i]));
    if (finish_.add == nullptr) return;
    for (int64_t i = 0; i < std::min(size, b_.n - first); ++i)
      w.add[i] = static_cast<int32_t>(static_cast<uint32_t>(w.add[i]) + static_cast<uint32_t>(finish_.add[first + i]));
  }

  // One piece of k, of so many blocks, for the rows that x has, so many at a time.
  void multiply(GemmArgs& x, int64_t quad, int64_t quads, int64_t block, int64_t blocks, int64_t at_a_time) const {
    x.columns = std::min(blocks * kGemmCols, b_.n - block * kGemmCols);
    x.b_stride = quads * 4 * kGemmCols, x.quads = quads;
    x.b = b_.codes.get() + quad * 4 * kGemmCols * b_.blocks + block * x.b_stride;
    for (int64_t r = 0; r < x.rows; r += at_a_time) {
      GemmArgs some = x;
      some.rows = std::min(at_a_time, x.rows - r);
      some.a = static_cast<const char*>(x.a) + r * x.a_stride, some.c = x.c + r * x.c_stride;
      if (x.from != nullptr) some.from = x.from + r * x.from_stride;
      kernel_.run(some);
    }
  }

  // Sums of pieces, added in int64.
  void beyond_int32(const Workspace& w, int64_t row, int64_t rows, int64_t block, int64_t blocks) const {
    const int64_t outputs = rows * blocks * kGemmCols;
    std::fill_n(w.total, outputs, int64_t{0});
    std::vector<int64_t> deep_sum(static_cast<size_t>(rows), 0);
    for (int64_t quad = 0; quad < b_.quads; quad += b_.piece) {
      const int64_t quads = std::min(b_.piece, b_.quads - quad);
      GemmArgs x{};
      pack(w, row, rows, quad, quads, x);
      x.c = w.c, x.c_stride = blocks * kGemmCols;
      multiply(x, quad, quads, block, blocks, rows);
      for (int64_t j = 0; j < outputs; ++j) w.total[j] += w.c[j];
      for (int64_t r = 0; r < rows; ++r) deep_sum[r] += std::exchange(w.row_sum[r], 0);
    }
    for (int64_t r = 0; r < rows; ++r)
      finish_deep(w.total + r * blocks * kGemmCols, deep_sum[r], row + r, block, blocks);
  }

  // Whether rows of codes are what the kernel reads; readable: whole steps of them, whatever is beyond k.
  bool reads_codes(int64_t stride, bool readable) const {
    return kernel_.a == GemmOperand::u8 && !a_.is_signed && !b_.has_zero && readable && !is_crowded(stride);
  }

  // One piece of the rows, packed for the kernel.
  void pack(const Workspace& w, int64_t row, int64_t rows, int64_t quad, int64_t quads, GemmArgs& x) const {
    const int64_t first = quad * 4, depth = quads * 4, n = std::clamp<int64_t>(b_.k - first, 0, depth);
    const int64_t item = operand_bytes(kernel_.a);
    x.rows = rows, x.paired = is_paired_;
    if (all_) {
      x.a = all_.get() + row * all_stride_ + first * item, x.a_stride = all_stride_;
      if (quad == 0) std::copy_n(all_sums_.get() + row, rows, w.row_sum);
      return;
    }
    const uint8_t* codes = w.codes;
    int64_t stride = depth;
    if (a_.codes != nullptr) {
      codes = a_.codes + row * a_.stride + first;
      stride = a_.stride;
    } else {
      for (int64_t r = 0; r < rows; ++r) a_.fetch(a_.context, row + r, first, n, w.codes + r * stride);
    }
    if (reads_codes(stride, n == depth || codes == w.codes)) {
      x.a = codes, x.a_stride = stride;
      return;
    }
    const int64_t bytes = depth * item;
    x.a = w.a, x.a_stride = bytes;
    for (int64_t r = 0; r < rows; ++r)
      w.row_sum[r] += kernel_.pack_a(codes + r * stride, n, a_.is_signed, b_.has_zero, w.a + r * bytes, depth);
    if (rows % kernel_.at_once != 0) std::memset(w.a + rows * bytes, 0, static_cast<size_t>(bytes));
  }

  // All rows, once for all tasks, where each would pack the same ones again.
  void pack_all() {
    const int64_t depth = b_.quads * 4, rows = round_up(a_.rows, kernel_.at_once);
    all_stride_ = roomy(depth * operand_bytes(kernel_.a));
    if (rows * all_stride_ > kPackedAtOnce) return;
    all_ = aligned<char>(rows * all_stride_);
    all_sums_ = aligned<int32_t>(rows);
    for (int64_t r = 0; r < a_.rows; ++r)
      all_sums_[r] = kernel_.pack_a(a_.codes + r * a_.stride, b_.k, a_.is_signed, b_.has_zero,
                                    all_.get() + r * all_stride_, depth);
    if (rows > a_.rows) std::memset(all_.get() + a_.rows * all_stride_, 0, static_cast<size_t>(all_stride_));
  }

  // Sums x.c of so many rows and blocks become results: those of rows `row` and on, which are `done` rows into the
  // task.
  void finish_rows_of(const Workspace& w, const GemmArgs& x, int64_t row, int64_t rows, int64_t done, int64_t block,
                      int64_t blocks) const {
    const int64_t first = block * kGemmCols;
    FinishArgs f{};
    f.acc = x.c, f.acc_stride = x.c_stride, f.rows = rows, f.n = std::min(blocks * kGemmCols, b_.n - first);
    if (a_.zero_per_row) f.by_a = b_.column.data() + first, f.row_a = w.row_zero + done;
    if (b_.has_zero) f.by_b = b_.zero.data() + first, f.row_b = w.row_sum + done;
    f.out_scale = 1;
    if (finish_.result != Result::s32) {
      f.scale = columns_.scale.get() + first;
      f.bias = finish_.bias == nullptr ? nullptr : columns_.bias.get() + first;
      if (finish_.scale_per_row) f.row_scale = finish_.row_scale + row, f.out_scale = finish_.out_scale;
      f.floor = finish_.floor, f.ceiling = finish_.ceiling;
      f.zero = finish_.zero, f.lo = finish_.lo, f.hi = finish_.hi;
    }
    f.out = out_ + (row * stride_ + first) * result_bytes(finish_.result), f.out_stride = stride_;
    row_.run(f);
  }

  // The same in int64, one element at a time: sums so deep are rare.
  void finish_deep(const int64_t* acc, int64_t row_sum, int64_t m, int64_t block, int64_t blocks) const {
    const int64_t first = block * kGemmCols, n = std::min(blocks * kGemmCols, b_.n - first);
    const int64_t zero = a_.zero[a_.zero_per_row ? m : 0] + shift_;
    for (int64_t i = 0; i < n; ++i) {
      const int64_t column = first + i;
      int64_t t = acc[i] - zero * b_.column[column] - static_cast<int64_t>(b_.zero[column]) * row_sum;
      if (finish_.add != nullptr) t += finish_.add[column];
      const int64_t at = m * stride_ + column;
      if (finish_.result == Result::s32) {
        reinterpret_cast<int64_t*>(out_)[at] = t;
        continue;
      }
      // The value as one product of a float and a scale: the kernel's own path, with the sum already a float.
      const float sum = static_cast<float>(t);
      const float row = finish_.row_scale == nullptr ? 1.0f : finish_.row_scale[finish_.scale_per_row ? m : 0];
      const float scale = row * finish_.scale[finish_.scale_per_column ? column : 0];
      if (finish_.result >= Result::s8) {
        const float low = static_cast<float>(finish_.lo - finish_.zero),
                    high = static_cast<float>(finish_.hi - finish_.zero);
        const float steps = std::clamp(std::nearbyintf(sum * (scale / finish_.out_scale)), low, high);
        reinterpret_cast<uint8_t*>(out_)[at] = static_cast<uint8_t>(static_cast<int32_t>(steps) + finish_.zero);
        continue;
      }
      float y = sum * scale;
      if (finish_.bias != nullptr) y += finish_.bias[column];
      y = std::clamp(y, finish_.floor, finish_.ceiling);
      if (finish_.result == Result::f32) narrow(reinterpret_cast<float*>(out_) + at, y);
      if (finish_.result == Result::f16) narrow(reinterpret_cast<half_t*>(out_) + at, y);
      if (finish_.result == Result::bf16) narrow(reinterpret_cast<bfloat_t*>(out_) + at, y);
    }
  }

  const CodeRows& a_;
  const PackedMatrix& b_;
  const Epilogue& finish_;
  char* out_;
  int64_t stride_;
  Isa isa_;
  const GemmRow* kernels_;
  const GemmRow& kernel_;
  const FinishRow& row_;
  bool is_paired_;  // two blocks at a time
  bool is_alone_;   // no other thread has a part of it
  bool wide_;       // sums in int64
  int64_t task_rows_, task_blocks_;
  int32_t shift_;
  Columns columns_;
  Aligned<char> all_;  // rows packed for all tasks, and what they add up to; null: each task packs its own
  Aligned<int32_t> all_sums_;
  int64_t all_stride_ = 0;
};

}  // namespace

void gemm(const CodeRows& a, const PackedMatrix& b, const Epilogue& epilogue, void* out, int64_t stride) {
  if (a.rows == 0 || b.n == 0) return;
  const FpEnvironment environment;  // for scales of columns
  const Product product(a, b, epilogue, out, stride);
  parallel_for(product.tasks(), [&](int64_t i) { product.task(i); });
}

int64_t gemm_thread_bytes(int64_t k, bool wide) {
  const bool deep = wide || k > kExactK;
  return workspace_bytes(deep) + (deep ? lines(kTaskRows * 8) : 0);  // and sums of rows
}
int64_t gemm_call_bytes(int64_t m, int64_t n, int64_t k) {
  const int64_t rows = round_up(m, 2), widest = rows * roomy(round_up((k + 3) / 4, kGemmQuads) * 4 * 2);
  return 3 * lines(round_up(n, kGemmCols) * 4) + std::min(widest, kPackedAtOnce) + lines(rows * 4);
}
}  // namespace lowbit
