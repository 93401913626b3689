// The algorithm, for every vector width: two taps per multiplication, and neighbouring output pixels share their loads.
//
// Roofline, 3x3 at stride 1 with AVX2. An output (one channel of one pixel) needs one byte read and one byte written. A
// tile of 6 pixels and 16 channels has 96 outputs of 9 taps:
//
//   24   widenings of 8 columns and 3 rows, including the loads
//   30   interleavings: rows 0 and 1 of each column, 8 times 2; row 2 of each column and the next, 7 times 2
//   120  multiplications and additions, half each: 5 pairs of taps per pixel
//   78   to requantize: convert, multiply, clamp, convert, pack, store
//
// These are 252 vector instructions, 2.6 per output. At four instructions per cycle that is 0.66 cycles for 18
// operations and two bytes: instructions are the limit, memory is not. One pixel at a time would take 3.3 per output.
#pragma once
#include "kernels/dwconv/dwconv.h"
#include "simd/vec.h"

namespace lowbit {

// Operations on taps, in addition to simd/vec.h. Taps<V> works on a block of channels.
//
//   kBlock, kVectors                channels of a block, and I32 vectors that hold its accumulators
//   Codes widen(p)                  kBlock s8 or u8 codes as int16
//   Pair pair(a, b)                 the codes of two taps, brought together
//   add(acc, v, pair, w)            acc + a * w(a) + b * w(b) for the channels of vector v; never saturates
//   add_second(acc, v, pair, w)     the same, the weights of a being 0
//   channel(v, lane)                which channel of the block this lane stands for
//   place(v, lane, second)          where its weight is among the 2 * kBlock of a pair
//   store(p, acc)                   kBlock int32, in order
//   store_codes2(p, q, a, b, k, flip)  bytes max(i + zero, qmin) ^ flip of two pixels; k is V::ByteShift, for u8
template <class V>
struct Taps;

// Which taps form a pair, for `pack` and for the kernels. Rows of the filter are paired column by column, the columns
// of a last odd row with each other. Its last odd column is the second of a pair whose first weight is 0.
template <int KH, int KW>
struct Pairs {
  static constexpr int kVertical = KH / 2 * KW;
  static constexpr int kLone = kVertical + KW / 2;  // the pair of the last column of the last odd row
  static int64_t count(int64_t, int64_t) { return kVertical + (KH % 2) * (KW + 1) / 2; }
  static int64_t tap(int64_t pair, int second, int64_t, int64_t) {  // -1: none
    if (pair < kVertical) return (pair / KW * 2 + second) * KW + pair % KW;
    const int64_t column = 2 * (pair - kVertical);
    if (column == KW - 1) return second ? KH * KW - 1 : -1;
    return (KH - 1) * KW + column + second;
  }
};
// Any filter: the columns of each row in pairs; the second weight of a last odd one is 0.
template <>
struct Pairs<0, 0> {
  static int64_t count(int64_t kh, int64_t kw) { return kh * ((kw + 1) / 2); }
  static int64_t tap(int64_t pair, int second, int64_t, int64_t kw) {
    const int64_t in_row = (kw + 1) / 2, column = pair % in_row * 2 + second;
    return column < kw ? pair / in_row * kw + column : -1;
  }
};

// The last block of channels overlaps the one before, so that every block is full.
template <class V>
struct Blocks {
  static constexpr int kBlock = Taps<V>::kBlock;
  static int64_t count(int64_t channels) { return (channels + kBlock - 1) / kBlock; }
  static int64_t start(int64_t block, int64_t channels) {
    return block * kBlock + kBlock <= channels ? block * kBlock : channels - kBlock;
  }
};

template <class V, int KH, int KW>
int64_t dwconv_packed(int64_t channels, int64_t kh, int64_t kw) {
  return Blocks<V>::count(channels) * Pairs<KH, KW>::count(kh, kw) * 2 * Blocks<V>::kBlock;
}

template <class V, int KH, int KW>
void dwconv_pack(const int16_t* w, int64_t channels, int64_t kh, int64_t kw, int16_t* out) {
  using T = Taps<V>;
  for (int64_t b = 0; b < Blocks<V>::count(channels); ++b)
    for (int64_t p = 0; p < Pairs<KH, KW>::count(kh, kw); ++p, out += 2 * T::kBlock)
      for (int v = 0; v < T::kVectors; ++v)
        for (int lane = 0; lane < V::width; ++lane)
          for (int second = 0; second < 2; ++second) {
            const int64_t channel = Blocks<V>::start(b, channels) + T::channel(v, lane);
            const int64_t tap = Pairs<KH, KW>::tap(p, second, kh, kw);
            out[T::place(v, lane, second)] = tap < 0 ? int16_t{0} : w[channel * kh * kw + tap];
          }
}

template <class V>
void dwconv_arrange(const void* in, int64_t channels, void* out) {
  using T = Taps<V>;
  char* to = static_cast<char*>(out);
  for (int64_t b = 0; b < Blocks<V>::count(channels); ++b)
    for (int v = 0; v < T::kVectors; ++v)
      for (int lane = 0; lane < V::width; ++lane, to += 4)
        std::memcpy(to, static_cast<const char*>(in) + 4 * (Blocks<V>::start(b, channels) + T::channel(v, lane)), 4);
}

// Epilogue: stores the accumulators of N pixels of a block.
template <class V>
struct StoreSums {
  using I32 = typename V::I32;
  int32_t* y;
  int64_t channels;
  explicit StoreSums(const DwconvArgs& a) : y(static_cast<int32_t*>(a.y)), channels(a.channels) {}
  template <int N>
  __attribute__((always_inline)) void operator()(int64_t pixel, int64_t channel, int64_t,
                                                 const I32 (*acc)[Taps<V>::kVectors]) const {
    int32_t* to = y + pixel * channels + channel;
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) Taps<V>::store(to + n * channels, acc[n]);
  }
};

// Epilogue: requantizes. Signed codes are computed as u8, 128 higher, and their top bit is flipped.
template <class V>
struct StoreCodes {
  using T = Taps<V>;
  using I32 = typename V::I32;
  uint8_t* y;
  int64_t channels;
  const float* multiplier;
  typename V::F32 lo, hi;
  typename V::ByteShift shift;
  uint8_t flip;
  explicit StoreCodes(const DwconvArgs& a)
      : y(static_cast<uint8_t*>(a.y)),
        channels(a.channels),
        multiplier(a.multiplier),
        lo(V::set(static_cast<float>(a.qmin - a.zero))),
        hi(V::set(static_cast<float>(a.qmax - a.zero))),
        shift(a.zero + (a.is_signed ? 128 : 0), a.qmin + (a.is_signed ? 128 : 0)),
        flip(a.is_signed ? 0x80 : 0) {}
  template <int N>
  __attribute__((always_inline)) void operator()(int64_t pixel, int64_t channel, int64_t block,
                                                 const I32 (*acc)[T::kVectors]) const {
    uint8_t* to = y + pixel * channels + channel;
    I32 steps[N][T::kVectors];
#pragma GCC unroll 2
    for (int v = 0; v < T::kVectors; ++v) {
      const auto by = V::load(multiplier + block * T::kBlock + v * V::width);
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) steps[n][v] = V::round_i32(V::limit(V::mul(V::to_f32(acc[n][v]), by), lo, hi));
    }
#pragma GCC unroll 4
    for (int n = 0; n < N; n += 2) {
      const int m = n + 1 < N ? n + 1 : n;
      T::store_codes2(to + n * channels, to + m * channels, steps[n], steps[m], shift, flip);
    }
  }
};

// N neighbouring pixels: each column of x is loaded once and accumulated for every pixel that covers it.
template <class V, class X, int KH, int KW, int S, int N, class Store>
LOWBIT_INLINE void dwconv_tile(const DwconvArgs& a, const Store& store, int64_t pixel) {
  using T = Taps<V>;
  using P = Pairs<KH, KW>;
  constexpr int kPair = 2 * T::kBlock;
  const auto* x = reinterpret_cast<const X* const*>(a.x) + pixel * S;
  const int16_t* w = a.weights;
  for (int64_t b = 0; b < Blocks<V>::count(a.channels); ++b, w += P::count(KH, KW) * kPair) {
    const int64_t c = Blocks<V>::start(b, a.channels);
    typename V::I32 acc[N][T::kVectors];
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n)
#pragma GCC unroll 2
      for (int v = 0; v < T::kVectors; ++v) acc[n][v] = V::load_i32(a.offset + b * T::kBlock + v * V::width);
#pragma GCC unroll 4
    for (int i = 0; i + 1 < KH; i += 2) {
#pragma GCC unroll 32
      for (int column = 0; column < (N - 1) * S + KW; ++column) {
        const auto rows =
            T::pair(T::widen(x[i * a.row_step + column] + c), T::widen(x[(i + 1) * a.row_step + column] + c));
#pragma GCC unroll 8
        for (int n = 0; n < N; ++n) {
          const int k = column - n * S;
          if (k < 0 || k >= KW) continue;
#pragma GCC unroll 2
          for (int v = 0; v < T::kVectors; ++v) acc[n][v] = T::add(acc[n][v], v, rows, w + (i / 2 * KW + k) * kPair);
        }
      }
    }
    if (KH % 2 == 1) {
      auto before = T::widen(x[(KH - 1) * a.row_step] + c);
#pragma GCC unroll 32
      for (int column = 1; column < (N - 1) * S + KW; ++column) {
        const auto here = T::widen(x[(KH - 1) * a.row_step + column] + c);
        const auto columns = T::pair(before, here);
#pragma GCC unroll 8
        for (int n = 0; n < N; ++n) {
          const int k = column - 1 - n * S;  // the first of the two
#pragma GCC unroll 2
          for (int v = 0; v < T::kVectors; ++v) {
            if (k >= 0 && k % 2 == 0 && k + 1 < KW)
              acc[n][v] = T::add(acc[n][v], v, columns, w + (P::kVertical + k / 2) * kPair);
            if (KW % 2 == 1 && k + 1 == KW - 1) acc[n][v] = T::add_second(acc[n][v], v, columns, w + P::kLone * kPair);
          }
        }
        before = here;
      }
    }
    store.template operator()<N>(pixel, c, b, acc);
  }
}

// Any filter: pixels share the loads of weights only.
template <class V, class X, int N, class Store>
LOWBIT_INLINE void dwconv_any(const DwconvArgs& a, const Store& store, int64_t pixel) {
  using T = Taps<V>;
  const auto* x = reinterpret_cast<const X* const*>(a.x) + pixel * a.stride;
  const int16_t* w = a.weights;
  for (int64_t b = 0; b < Blocks<V>::count(a.channels); ++b) {
    const int64_t c = Blocks<V>::start(b, a.channels);
    typename V::I32 acc[N][T::kVectors];
#pragma GCC unroll 2
    for (int n = 0; n < N; ++n)
#pragma GCC unroll 2
      for (int v = 0; v < T::kVectors; ++v) acc[n][v] = V::load_i32(a.offset + b * T::kBlock + v * V::width);
    for (int64_t i = 0; i < a.kh; ++i)
      for (int64_t j = 0; j < a.kw; j += 2, w += 2 * T::kBlock) {
        const auto* first = x + i * a.row_step + j;
        const auto* second = j + 1 < a.kw ? first + 1 : first;
#pragma GCC unroll 2
        for (int n = 0; n < N; ++n) {
          const auto columns = T::pair(T::widen(first[n * a.stride] + c), T::widen(second[n * a.stride] + c));
#pragma GCC unroll 2
          for (int v = 0; v < T::kVectors; ++v) acc[n][v] = T::add(acc[n][v], v, columns, w);
        }
      }
    store.template operator()<N>(pixel, c, b, acc);
  }
}

// The last five pixels take a full tile that overlaps the one before, fewer take smaller tiles, whichever is less work.
template <class V, class X, int KH, int KW, int S, template <class> class Store>
void dwconv_run(const DwconvArgs& a) {
  const Store<V> store(a);
  int64_t p = 0;
  if constexpr (KH == 0) {
    for (; p + 2 <= a.pixels; p += 2) dwconv_any<V, X, 2>(a, store, p);
    if (p < a.pixels) dwconv_any<V, X, 1>(a, store, p);
  } else {
    for (; p + 6 <= a.pixels; p += 6) dwconv_tile<V, X, KH, KW, S, 6>(a, store, p);
    if (p + 5 == a.pixels && p > 0) return dwconv_tile<V, X, KH, KW, S, 6>(a, store, p - 1);
    for (; p + 2 <= a.pixels; p += 2) dwconv_tile<V, X, KH, KW, S, 2>(a, store, p);
    if (p < a.pixels) dwconv_tile<V, X, KH, KW, S, 1>(a, store, p);
  }
}

template <class V>
struct DwconvRows {
  static constexpr DwconvRow rows[] = {
#define ROW(code, X, kh, kw, stride)            \
  {Code::code,                                  \
   kh,                                          \
   kw,                                          \
   stride,                                      \
   Taps<V>::kBlock,                             \
   dwconv_packed<V, kh, kw>,                    \
   dwconv_pack<V, kh, kw>,                      \
   dwconv_arrange<V>,                           \
   dwconv_run<V, X, kh, kw, stride, StoreSums>, \
   dwconv_run<V, X, kh, kw, stride, StoreCodes>},
#include "kernels/dwconv/kernels.inc"
#undef ROW
  };
};

}  // namespace lowbit
