#include "drivers/elementwise/combine.h"

#include <algorithm>
#include <cstring>

#include "base/arch.h"
#include "drivers/elementwise/chunks.h"
#include "drivers/elementwise/shortcut.h"
#include "kernels/clamp_lookup/clamp_lookup.h"

namespace lowbit {
namespace {

constexpr int64_t kChunk = 65536;  // codes per task
constexpr int64_t kBlock = 4096;   // codes of an operand expanded at once: they stay in L1

// An operand in the order of the result, a block at a time. Axes are merged where possible; after that, axes that are
// walked along and axes that are broadcast alternate.
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

  // The number of codes from `begin` on that one block may have.
  int64_t most(int64_t begin, int64_t n) const {
    if (is_whole()) return n;
    if (reads_in_place()) return std::min(n, axes_[0].size - begin % axes_[0].size);
    return std::min(n, kBlock);
  }
  const uint8_t* block(int64_t begin, int64_t n, uint8_t* scratch) const {
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
  // Whether it is one long run of codes, repeated.
  bool reads_in_place() const { return axes_.size() == 2 && axes_[0].walked() && axes_[0].size >= kBlock; }
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

}  // namespace

void combine(AddMulOp op, const CodesOperand& a, const CodesOperand& b, const CodesResult& q) {
  int64_t n = 1;
  for (const int64_t size : q.shape) n *= size;
  if (n == 0) return;
  const Isa isa = active_isa();
  const AddMulRow& row = add_mul_row(isa, op, q.code);
  AddMulArgs all{};
  all.a_signed = a.code == Code::s8, all.b_signed = b.code == Code::s8;
  all.sa = a.scale, all.sb = b.scale, all.sy = q.scale;
  all.za = a.zero, all.zb = b.zero, all.zy = q.zero, all.qmin = q.qmin, all.qmax = q.qmax;
  all.shortcut = cached_shortcut(isa, row, all, n);
  const AddMulFn run = all.shortcut ? row.shortcut : row.exact;
  const Spread from_a(a, q.shape), from_b(b, q.shape);
  for_each_chunk(n, kChunk, [&](int64_t begin, int64_t end) {
    alignas(64) uint8_t scratch_a[kBlock], scratch_b[kBlock];
    AddMulArgs k = all;
    for (int64_t i = begin; i < end; i += k.n) {
      k.n = std::min(from_a.most(i, end - i), from_b.most(i, end - i));
      k.a = from_a.block(i, k.n, scratch_a), k.b = from_b.block(i, k.n, scratch_b), k.q = q.codes + i;
      run(k);
    }
  });
}

void clamp_codes(Code code, const uint8_t* x, int64_t n, int32_t lo, int32_t hi, uint8_t* q) {
  const ClampLookupRow& row = clamp_lookup_row(active_isa(), code);
  for_each_chunk(n, kChunk, [&](int64_t begin, int64_t end) {
    row.clamp({x + begin, q + begin, end - begin, static_cast<uint8_t>(lo), static_cast<uint8_t>(hi), nullptr});
  });
}

void lookup_rows(const uint8_t* table, const uint8_t* x, int64_t rows, int64_t length, uint8_t* q, int64_t stride) {
  const ClampLookupRow& row = clamp_lookup_row(active_isa(), Code::u8);
  for_each_chunk(rows * length, kChunk, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end;) {
      const int64_t r = i / length, at = i % length, n = std::min(end - i, length - at);
      if (table == nullptr) {
        std::memcpy(q + r * stride + at, x + i, n);
      } else {
        row.lookup({x + i, q + r * stride + at, n, 0, 0, table});
      }
      i += n;
    }
  });
}

}  // namespace lowbit
