#include "drivers/elementwise/elementwise.h"

#include <cstring>
#include <vector>

#include "base/threads.h"
#include "drivers/elementwise/chunks.h"
#include "kernels/dequantize/dequantize.h"
#include "kernels/pack/pack.h"
#include "kernels/quantize/quantize.h"
#include "simd/vec.h"

namespace lowbit {
namespace {

constexpr int64_t kChunk = 32768;   // elements per task: 128 KiB of f32, a multiple of every packing
constexpr int64_t kScratch = 4096;  // codes held in L1 before packing
constexpr int64_t kTile = 1024;     // columns prepared at once: their constants stay in L1 for all rows
constexpr int64_t kRows = 64;       // rows per task that share this preparation

int unpacked_bytes(Code code) { return code_bits(code) == 16 ? 2 : 1; }

const int32_t* zero_at(const int32_t* zero, int64_t i) { return zero ? zero + i : nullptr; }

// Elements per task: kChunk, or more where columns have scales of their own.
int64_t chunk_of(const Granularity& layout) {
  if (!layout.varying()) return kChunk;
  const int64_t columns = layout.kind == GranularityKind::channel ? layout.axis : layout.inner;
  return std::max(kChunk, kRows * columns);
}

// Calls codes(begin, end, buffer) for blocks of at most `step` <= kChunk elements of [begin, end), and packs the
// buffer.
template <class Codes>
void pack_blocks(Code code, int64_t begin, int64_t end, int64_t step, void* q, Codes&& codes) {
  const PackRow& row = pack_row(active_isa(), code_bits(code));
  alignas(64) uint8_t buffer[kChunk];
  for (int64_t b = begin; b < end; b += step) {
    const int64_t e = std::min(end, b + step);
    codes(b, e, buffer);
    row.pack(buffer, e - b, reinterpret_cast<uint8_t*>(at(q, b * code_bits(code) / 8)));
  }
}

// Unpacks blocks of [begin, end), which starts on a whole byte, and calls use(begin, end, codes).
template <class Use>
void unpack_blocks(Code code, int64_t begin, int64_t end, const void* q, Use&& use) {
  const PackRow& row = pack_row(active_isa(), code_bits(code));
  alignas(64) uint8_t buffer[kScratch];
  for (int64_t b = begin; b < end; b += kScratch) {
    const int64_t e = std::min(end, b + kScratch);
    row.unpack(reinterpret_cast<const uint8_t*>(at(q, b * code_bits(code) / 8)), e - b, buffer, is_packed_signed(code));
    use(b, e, buffer);
  }
}

// Codes of elements [begin, end) into q, which is where element `begin` goes.
void quantize_range(const Granularity& layout, const Affine& f, const QuantizeRow& row, const void* x, Element in,
                    int64_t begin, int64_t end, void* q) {
  const int64_t xb = element_bytes(in), sb = compute_bytes(in), qb = unpacked_bytes(row.code);
  QuantizeArgs a{};
  a.qmin = f.qmin, a.qmax = f.qmax;
  for_each_segment(
      layout, begin, end,
      [&](int64_t start, int64_t length, int64_t count, int64_t scale) {
        a.x = at(x, start * xb), a.q = at(q, (start - begin) * qb), a.n = length * count, a.group = length;
        a.scale = at(f.scale, scale * sb), a.zero = zero_at(f.zero, scale);
        (count == 1 ? row.uniform : row.grouped)(a);
      },
      [&](int64_t start, int64_t rows, int64_t stride, int64_t columns, int64_t scale) {
        alignas(64) char inverse[kTile * 8], low[kTile * 8], limit[kTile * 8];
        a.inverse = inverse, a.low = low, a.limit = limit;
        for (int64_t c = 0; c < columns; c += kTile) {
          a.n = std::min(kTile, columns - c);
          a.scale = at(f.scale, (scale + c) * sb), a.zero = zero_at(f.zero, scale + c);
          a.divide = row.prepare(a, inverse, low, limit);
          a.x = at(x, (start + c) * xb), a.q = at(q, (start + c - begin) * qb);
          a.rows = rows, a.stride = stride;
          row.columns(a);
        }
      });
}

// Numbers of elements [begin, end); q and y are where element `begin` is and goes.
void dequantize_range(const Granularity& layout, const Affine& f, const DequantizeRow& row, const void* q,
                      int64_t begin, int64_t end, void* y, Element out) {
  const int64_t yb = element_bytes(out), sb = compute_bytes(out), qb = unpacked_bytes(row.code);
  DequantizeArgs a{};
  const auto place = [&](int64_t start, int64_t scale) {
    a.q = at(q, (start - begin) * qb), a.y = at(y, (start - begin) * yb);
    a.scale = at(f.scale, scale * sb), a.zero = zero_at(f.zero, scale);
  };
  for_each_segment(
      layout, begin, end,
      [&](int64_t start, int64_t length, int64_t count, int64_t scale) {
        place(start, scale);
        a.n = length * count, a.group = length;
        row.grouped(a);
      },
      [&](int64_t start, int64_t rows, int64_t stride, int64_t columns, int64_t scale) {
        a.n = columns;
        for (int64_t r = 0; r < rows; ++r) {
          place(start + r * stride, scale);
          row.varying(a);
        }
      });
}

// One chunk, whatever the width of its codes.
void quantize_chunk(const Granularity& layout, const Affine& f, const void* x, Element in, int64_t begin, int64_t end,
                    void* q) {
  const QuantizeRow& row = quantize_row(active_isa(), in, unpacked_code(f.code));
  if (code_bits(f.code) >= 8) {
    quantize_range(layout, f, row, x, in, begin, end, at(q, begin * unpacked_bytes(f.code)));
  } else {
    // Columns with scales of their own are prepared once per block: longer blocks amortise that.
    const int64_t step = layout.varying() ? kChunk : kScratch;
    pack_blocks(f.code, begin, end, step, q,
                [&](int64_t b, int64_t e, uint8_t* buffer) { quantize_range(layout, f, row, x, in, b, e, buffer); });
  }
}

}  // namespace

void dequantize_part(const Granularity& layout, const Affine& f, const void* q, int64_t begin, int64_t end, void* y,
                     Element out) {
  const DequantizeRow& row = dequantize_row(active_isa(), unpacked_code(f.code), out);
  if (code_bits(f.code) >= 8) {
    dequantize_range(layout, f, row, at(q, begin * unpacked_bytes(f.code)), begin, end, y, out);
  } else {
    unpack_blocks(f.code, begin, end, q, [&](int64_t b, int64_t e, const uint8_t* codes) {
      dequantize_range(layout, f, row, codes, b, e, at(y, (b - begin) * element_bytes(out)), out);
    });
  }
}

void quantize(const Granularity& layout, const Affine& affine, const void* x, Element in, void* q) {
  const int64_t n = layout.elements();
  for_each_chunk(n, chunk_of(layout), [&](int64_t b, int64_t e) { quantize_chunk(layout, affine, x, in, b, e, q); });
}

void dequantize(const Granularity& layout, const Affine& affine, const void* q, void* y, Element out) {
  for_each_chunk(layout.elements(), kChunk, [&](int64_t b, int64_t e) {
    dequantize_part(layout, affine, q, b, e, at(y, b * element_bytes(out)), out);
  });
}

namespace {

// Calls body(affine, granularity, first, byte) for the chunks of every channel: elements from `first` on, whose codes
// begin at `byte`.
template <class Body>
void for_each_mixed_chunk(const MixedArgs& m, Element e, Body&& body) {
  const int64_t chunks = (m.length + kChunk - 1) / kChunk;
  parallel_for(m.channels * chunks, [&](int64_t i) {
    const int64_t c = i / chunks, begin = i % chunks * kChunk;
    const Affine f{m.code[c], at(m.scale, c * compute_bytes(e)), zero_at(m.zero, c), m.qmin[c], m.qmax[c]};
    const Granularity chunk{GranularityKind::tensor, 1, 1, std::min(kChunk, m.length - begin), 1};
    body(f, chunk, c * m.length + begin, m.offset[c] + begin * code_bits(f.code) / 8);
  });
}

}  // namespace

void quantize_mixed(const MixedArgs& m, const void* x, Element in, void* q) {
  for_each_mixed_chunk(m, in, [&](const Affine& f, const Granularity& chunk, int64_t first, int64_t byte) {
    const void* from = at(x, first * element_bytes(in));
    char* to = at(q, byte);
    const int64_t n = chunk.elements();
    if (is_misaligned(f.code, to)) {
      alignas(64) char buffer[kChunk * 2];
      quantize_chunk(chunk, f, from, in, 0, n, buffer);
      std::memcpy(to, buffer, n * 2);
    } else {
      quantize_chunk(chunk, f, from, in, 0, n, to);
    }
  });
}

void dequantize_mixed(const MixedArgs& m, const void* q, void* y, Element out) {
  for_each_mixed_chunk(m, out, [&](const Affine& f, const Granularity& chunk, int64_t first, int64_t byte) {
    const char* from = at(q, byte);
    const int64_t n = chunk.elements();
    alignas(64) char buffer[kChunk * 2];
    if (is_misaligned(f.code, from)) {
      std::memcpy(buffer, from, n * 2);
      from = buffer;
    }
    dequantize_part(chunk, f, from, 0, n, at(y, first * element_bytes(out)), out);
  });
}

void pack(int bits, const uint8_t* codes, int64_t n, uint8_t* bytes) {
  const Code code = bits == 4 ? Code::u4 : (bits == 2 ? Code::u2 : Code::b1);
  for_each_chunk(n, kChunk, [&](int64_t b, int64_t e) {
    pack_blocks(code, b, e, kScratch, bytes, [&](int64_t first, int64_t last, uint8_t* buffer) {
      std::memcpy(buffer, codes + first, last - first);
    });
  });
}

void unpack(int bits, bool is_signed, const uint8_t* bytes, int64_t n, uint8_t* codes) {
  for_each_chunk(n, kChunk, [&](int64_t b, int64_t e) {
    pack_row(active_isa(), bits).unpack(bytes + b * bits / 8, e - b, codes + b, is_signed);
  });
}

namespace {

// A segment iterator for the look-up kernels, which take one scale per call.
template <class T, class Call>
void with_one_scale(const Granularity& layout, const T* scales, int64_t begin, int64_t end, Call&& call) {
  for_each_segment(
      layout, begin, end,
      [&](int64_t start, int64_t length, int64_t count, int64_t scale) {
        for (int64_t g = 0; g < count; ++g) call(start + g * length, length, scales[scale + g]);
      },
      [&](int64_t start, int64_t rows, int64_t stride, int64_t columns, int64_t scale) {
        for (int64_t r = 0; r < rows; ++r)
          for (int64_t c = 0; c < columns; ++c) call(start + r * stride + c, int64_t{1}, scales[scale + c]);
      });
}

template <class T, class Call>
void with_element(Element e, Call&& call) {
  if constexpr (sizeof(T) == 8) {
    call(double{});
  } else {
    switch (e) {
      case Element::f16:
        return call(half_t{});
      case Element::bf16:
        return call(bfloat_t{});
      default:
        return call(float{});
    }
  }
}

}  // namespace

template <class T>
void log_quantize(const Granularity& layout, const LogTable<T>& table, Code code, const T* scale, const void* x,
                  Element in, void* q) {
  const auto encode = [&](int64_t b, int64_t e, auto* codes) {
    with_element<T>(in, [&](auto tag) {
      const auto* data = static_cast<const decltype(tag)*>(x);
      with_one_scale(layout, scale, b, e, [&](int64_t start, int64_t n, T s) {
        log_encode(table, data + start, codes + (start - b), n, s);
      });
    });
  };
  for_each_chunk(layout.elements(), kChunk, [&](int64_t b, int64_t e) {
    if (code == Code::s16) {
      encode(b, e, static_cast<int16_t*>(q) + b);
    } else if (code == Code::s8) {
      encode(b, e, static_cast<int8_t*>(q) + b);
    } else {
      pack_blocks(code, b, e, kScratch, q, [&](int64_t first, int64_t last, uint8_t* buffer) {
        encode(first, last, reinterpret_cast<int8_t*>(buffer));
      });
    }
  });
}

template <class T>
void log_dequantize_part(const Granularity& layout, const LogTable<T>& table, Code code, const T* scale, const void* q,
                         int64_t begin, int64_t end, void* y, Element out) {
  const auto decode = [&](int64_t b, int64_t e, const auto* codes) {
    with_element<T>(out, [&](auto tag) {
      auto* data = static_cast<decltype(tag)*>(y);
      with_one_scale(layout, scale, b, e, [&](int64_t start, int64_t n, T s) {
        log_decode(table, codes + (start - b), data + (start - begin), n, s);
      });
    });
  };
  if (code == Code::s16) {
    decode(begin, end, static_cast<const int16_t*>(q) + begin);
  } else if (code == Code::s8) {
    decode(begin, end, static_cast<const int8_t*>(q) + begin);
  } else {
    unpack_blocks(code, begin, end, q, [&](int64_t b, int64_t e, const uint8_t* buffer) {
      decode(b, e, reinterpret_cast<const int8_t*>(buffer));
    });
  }
}

template <class T>
void log_dequantize(const Granularity& layout, const LogTable<T>& table, Code code, const T* scale, const void* q,
                    void* y, Element out) {
  for_each_chunk(layout.elements(), kChunk, [&](int64_t b, int64_t e) {
    log_dequantize_part(layout, table, code, scale, q, b, e, at(y, b * element_bytes(out)), out);
  });
}

template void log_quantize(const Granularity&, const LogTable<float>&, Code, const float*, const void*, Element, void*);
template void log_quantize(const Granularity&, const LogTable<double>&, Code, const double*, const void*, Element,
                           void*);
template void log_dequantize_part(const Granularity&, const LogTable<float>&, Code, const float*, const void*, int64_t,
                                  int64_t, void*, Element);
template void log_dequantize(const Granularity&, const LogTable<float>&, Code, const float*, const void*, void*,
                             Element);
template void log_dequantize(const Granularity&, const LogTable<double>&, Code, const double*, const void*, void*,
                             Element);

}  // namespace lowbit
