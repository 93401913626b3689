#include "drivers/elementwise/combine.h"

#include <algorithm>
#include <cstring>

#include "base/arch.h"
#include "drivers/elementwise/chunks.h"
#include "drivers/elementwise/elementwise.h"
#include "drivers/elementwise/shortcut.h"
#include "kernels/codes/codes.h"
#include "simd/order.h"

namespace lowbit {
namespace {

constexpr int64_t kChunk = 65536;  // codes a task
constexpr int64_t kPiece = 4096;   // codes of an operand spread out at once: they stay in L1

// An operand in the result's order, a piece at a time. Its axes are merged as far as they go: then each is walked along
// or stood still on, in turns.
class Spread {
 public:
  Spread(const CodesOperand& x, const std::vector<int64_t>& shape) : codes_(x.codes) {
    int64_t stride = 1;
    for (size_t i = shape.size(); i-- > 0;) {
      if (shape[i] == 1) continue;
      const bool walked = x.shape[i] != 1;
      if (axes_.empty() || axes_.back().walked() != walked) {
        axes_.push_back({shape[i], walked ? stride : 0});
      } else {
        axes_.back().size *= shape[i];
      }
      if (walked) stride *= shape[i];
    }
    if (axes_.empty()) axes_.push_back({1, 1});
  }

  bool is_whole() const { return axes_.size() == 1 && axes_[0].walked(); }

  // How many codes from `begin` on may be asked for at once.
  int64_t most(int64_t begin, int64_t n) const {
    if (is_whole()) return n;
    if (reads_in_place()) return std::min(n, axes_[0].size - begin % axes_[0].size);
    return std::min(n, kPiece);
  }
  const uint8_t* piece(int64_t begin, int64_t n, uint8_t* scratch) const {
    if (is_whole()) return codes_ + begin;
    if (reads_in_place()) return codes_ + begin % axes_[0].size;
    for (int64_t i = 0; i < n;) {
      const int64_t at = begin + i, inner = at % axes_[0].size, run = std::min(n - i, axes_[0].size - inner);
      if (axes_[0].walked()) {
        std::memcpy(scratch + i, codes_ + offset(at), run);
      } else {
        std::memset(scratch + i, codes_[offset(at)], run);
      }
      i += run;
    }
    return scratch;
  }

 private:
  struct Axis {
    int64_t size, stride;
    bool walked() const { return stride != 0; }
  };
  // A long run of codes, repeated.
  bool reads_in_place() const { return axes_.size() == 2 && axes_[0].walked() && axes_[0].size >= kPiece; }
  int64_t offset(int64_t at) const {
    int64_t found = 0;
    for (const Axis& axis : axes_) {
      found += at % axis.size * axis.stride;
      at /= axis.size;
    }
    return found;
  }

  const uint8_t* codes_;
  std::vector<Axis> axes_;  // innermost first
};

int64_t elements(const std::vector<int64_t>& shape) {
  int64_t n = 1;
  for (const int64_t size : shape) n *= size;
  return n;
}

}  // namespace

void combine(CombineOp op, const CodesOperand& a, const CodesOperand& b, const CodesResult& q) {
  const int64_t n = elements(q.shape);
  if (n == 0) return;
  const Isa isa = active_isa();
  const CombineRow& row = combine_row(isa, op, q.code);
  CombineArgs all{};
  all.a_signed = a.code == Code::s8, all.b_signed = b.code == Code::s8;
  all.sa = a.scale, all.sb = b.scale, all.sy = q.scale;
  all.za = a.zero, all.zb = b.zero, all.zy = q.zero, all.qmin = q.qmin, all.qmax = q.qmax;
  all.shortcut = remembered_shortcut(isa, row, all, n);
  const CombineFn run = all.shortcut ? row.shortcut : row.exact;
  const Spread from_a(a, q.shape), from_b(b, q.shape);
  all.stream = from_a.is_whole() && from_b.is_whole() && exceeds_caches(3 * n);
  for_each_chunk(
      n, kChunk,
      [&](int64_t begin, int64_t end) {
        alignas(64) uint8_t scratch_a[kPiece], scratch_b[kPiece];
        CombineArgs k = all;
        for (int64_t i = begin; i < end; i += k.n) {
          k.n = std::min(from_a.most(i, end - i), from_b.most(i, end - i));
          k.a = from_a.piece(i, k.n, scratch_a), k.b = from_b.piece(i, k.n, scratch_b), k.q = q.codes + i;
          run(k);
        }
      },
      !all.stream && from_a.is_whole() && from_b.is_whole() && is_better_backwards(q.codes, a.codes, b.codes));
}

void clamp_codes(Code code, const uint8_t* x, int64_t n, int32_t lo, int32_t hi, uint8_t* q) {
  const CodesRow& row = codes_row(active_isa(), code);
  const bool stream = exceeds_caches(2 * n);
  for_each_chunk(
      n, kChunk,
      [&](int64_t begin, int64_t end) {
        row.clamp(
            {x + begin, q + begin, end - begin, static_cast<uint8_t>(lo), static_cast<uint8_t>(hi), nullptr, stream});
      },
      !stream && is_better_backwards(q, x));
}

void lookup_rows(const uint8_t* table, const uint8_t* x, int64_t rows, int64_t length, uint8_t* q, int64_t stride) {
  const CodesRow& row = codes_row(active_isa(), Code::u8);
  const bool stream = table != nullptr && exceeds_caches(2 * rows * length);
  for_each_chunk(rows * length, kChunk, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end;) {
      const int64_t r = i / length, at = i % length, n = std::min(end - i, length - at);
      if (table == nullptr) {
        std::memcpy(q + r * stride + at, x + i, n);
      } else {
        row.lookup({x + i, q + r * stride + at, n, 0, 0, table, stream});
      }
      i += n;
    }
  });
}

}  // namespace lowbit
