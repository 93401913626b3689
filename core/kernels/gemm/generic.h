// The micro-kernel. An engine E defines the dot product of quads on an ISA:
//
//   A                      element of a: int16_t, uint8_t or int8_t
//   group                  columns of one accumulator: 4, 8 or 16
//   a_rows                 rows of one accumulator: 1, or 2 where the instruction multiplies matrices
//   step                   quads per step: 1, or kGemmQuads
//   Quad, load_a(p, stride)  a step of a at p, for every column (of a_rows rows)
//   Cols, load_b(p)        a step of b: `group` columns, kQuadBytes from quad to quad
//   dot_two(acc&, acc&, a, first, b)  optional: dot with two groups, the first of them in a register
//   Acc, dot(acc&, a, b), store<Add>(acc, c, stride, from, from_stride)
//                          store to c[a_rows][group], plus `from` with Add; from may be c
//   start(from)            optional: an accumulator that starts at from[group], so that nothing is added later
//   by_block               whether all rows of a panel are computed before the next panel
//   by_pairs               whether this may be done for two panels at once
//   chains(rows), sum(acc, acc)  optional: alternating accumulators per sum, where a tile has too few accumulators to
//                          hide the latency of dot
//   is_one                 whether dot is opaque to compilers, so that `peak` is not optimized away
//   max_rows, wide(rows)   rows of a full tile; column vectors of a tile with `rows` rows
#pragma once
#include <type_traits>

#include "kernels/gemm/gemm.h"
#include "simd/vec.h"

namespace lowbit {

// What most engines have in common. An engine defines again what differs.
template <class Element>
struct DotEngine {
  using A = Element;
  static constexpr int group = 4, a_rows = 1, step = 1;
  static constexpr bool is_one = true, by_block = false;
};

constexpr int64_t kQuadBytes = kGemmCols * 4, kStripBytes = 16 << 10, kShortSum = 96;

// What a tile prefetches of b: `bytes` beyond what it reads, or as much of another panel as it reads of its own.
struct Prefetch {
  int bytes;
  bool other_block;
  int locality;  // of __builtin_prefetch: 3 to L1, 2 to L2
};
constexpr Prefetch kNothing{0, false, 0}, kForStrips{4096, false, 3}, kForFewRows{2048, false, 2},
    kForMoreRows{8192, false, 2}, kForFewRowsOfPairs{2048, false, 0}, kOtherBlock{0, true, 2};

// The start of column group g of b.
template <class E>
LOWBIT_INLINE const int8_t* group_of(const GemmArgs& x, int64_t g) {
  constexpr int64_t kPer = kGemmCols / E::group;
  return x.b + g / kPer * x.b_stride + g % kPer * (E::group * 4);
}

template <class E, bool Add, int Pairs, int Wide>
LOWBIT_INLINE void store_tile(const typename E::Acc (&acc)[Pairs][Wide], int32_t* c, int64_t stride,
                              const int32_t* from, int64_t from_stride, const int64_t (&column)[Wide]) {
#pragma GCC unroll 16
  for (int i = 0; i < Pairs; ++i) {
#pragma GCC unroll 16
    for (int j = 0; j < Wide; ++j)
      E::template store<Add>(acc[i][j], c + column[j], stride, Add ? from + column[j] : nullptr, from_stride);
    c += E::a_rows * stride;
    if (Add) from += E::a_rows * from_stride;
  }
}

// Column groups g, g + 1, ... of panels. other: offset of the panel that Fetch prefetches, in bytes from the first
// group. Segmented: rows of a are segments; a template parameter, because the loop over them is costly for short k.
// Chains: alternating accumulators per sum, two where a tile has too few accumulators to hide latency.
template <class E, int Rows, int Wide, Prefetch Fetch, bool Segmented, int Chains = 1>
LOWBIT_INLINE void tile(const GemmArgs& x, int64_t row, int64_t g, [[maybe_unused]] int64_t other = 0) {
  constexpr int kPer = kGemmCols / E::group, kPairs = Rows / E::a_rows;
  static_assert(kGemmQuads % (Chains * E::step) == 0);
  constexpr bool kStarts = requires { &E::start; };
  const int8_t* b[Wide];
  int64_t column[Wide];
#pragma GCC unroll 16
  for (int j = 0; j < Wide; ++j) {
    b[j] = j % kPer == 0 ? group_of<E>(x, g + j) : b[j - 1] + E::group * 4;  // g is not beyond the middle of a panel
    column[j] = (g + j) * E::group;
  }
  typename E::Acc acc[kPairs][Wide], turned[kPairs][Wide];
  const int32_t* const from = x.from == nullptr ? nullptr : x.from + row * x.from_stride;
#pragma GCC unroll 16
  for (int i = 0; i < kPairs; ++i)
#pragma GCC unroll 16
    for (int j = 0; j < Wide; ++j) acc[i][j] = turned[i][j] = typename E::Acc{};
  if constexpr (kStarts)
    if (from != nullptr)
#pragma GCC unroll 16
      for (int i = 0; i < kPairs; ++i)
#pragma GCC unroll 16
        for (int j = 0; j < Wide; ++j) acc[i][j] = E::start(from + i * x.from_stride + column[j]);
  int32_t* const c = x.c + row * x.c_stride;
  // Prefetch c for writing. Short k leaves no time for it, and it does not pay where panels are paired.
  if (Wide * E::group <= kGemmCols && x.quads > kShortSum)
    for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 16
      for (int j = 0; j < Wide; j += kPer) __builtin_prefetch(c + i * x.c_stride + column[j], 1);
  const int64_t a_stride = x.a_stride;
  const char *const start = static_cast<const char*>(x.a) + row * a_stride, *a = start;
  const auto advance = [&](typename E::Acc(&acc)[kPairs][Wide]) __attribute__((always_inline)) {
    typename E::Cols cols[Wide];
    if constexpr (Fetch.other_block) __builtin_prefetch(b[0] + other, 0, Fetch.locality);
    if constexpr (Fetch.bytes > 0)
#pragma GCC unroll 16
      for (int j = 0; j < Wide; j += kPer)
        for (int quad = 0; quad < E::step; ++quad)
          __builtin_prefetch(b[j] + Fetch.bytes + quad * kQuadBytes, 0, Fetch.locality);
#pragma GCC unroll 16
    for (int j = 0; j < Wide; ++j) {
      cols[j] = E::load_b(b[j]);
      b[j] += E::step * kQuadBytes;
    }
    if constexpr (Wide == 2 && requires { &E::dot_two; }) {
      const auto first = *cols[0];
#pragma GCC unroll 16
      for (int i = 0; i < kPairs; ++i)
        E::dot_two(acc[i][0], acc[i][1], E::load_a(a + i * E::a_rows * a_stride, a_stride), first, cols[1]);
    } else {
#pragma GCC unroll 16
      for (int i = 0; i < kPairs; ++i) {
        const typename E::Quad v = E::load_a(a + i * E::a_rows * a_stride, a_stride);
#pragma GCC unroll 16
        for (int j = 0; j < Wide; ++j) E::dot(acc[i][j], v, cols[j]);
      }
    }
    a += E::step * 4 * static_cast<int64_t>(sizeof(typename E::A));
  };
  const auto run = [&](int64_t quads) __attribute__((always_inline)) {
    const char* const end = a + quads * 4 * static_cast<int64_t>(sizeof(typename E::A));
    do {
      for (int i = 0; i < kGemmQuads; i += Chains * E::step) {
        advance(acc);
        if constexpr (Chains == 2) advance(turned);
      }
    } while (a != end);
  };
  if constexpr (Segmented) {
    const GemmSegment *segment = x.segments, *const past = segment + x.segment_count;
    do {
      a = start + segment->offset;
      run(segment->quads);
    } while (++segment != past);
  } else {
    run(x.quads);
  }
  if constexpr (Chains == 2)
#pragma GCC unroll 16
    for (int i = 0; i < kPairs; ++i)
#pragma GCC unroll 16
      for (int j = 0; j < Wide; ++j) acc[i][j] = E::sum(acc[i][j], turned[i][j]);
  if (!kStarts && from != nullptr) {
    store_tile<E, true>(acc, c, x.c_stride, from, x.from_stride, column);
  } else {
    store_tile<E, false>(acc, c, x.c_stride, nullptr, 0, column);
  }
}

// All column groups for Rows rows, in the widest tiles that registers allow.
template <class E, int Rows, Prefetch Fetch, bool Segmented, int Wide = E::wide(Rows)>
void strip(const GemmArgs& given, int64_t row, int64_t g, int64_t end) {
  const GemmArgs x = given;  // a copy, which stores to c cannot alias
  for (; g + Wide <= end; g += Wide) tile<E, Rows, Wide, Fetch, Segmented>(x, row, g);
  if constexpr (Wide > 1)
    if (g < end) strip<E, Rows, Fetch, Segmented, Wide / 2>(x, row, g, end);
}

// Prefetches the next rows of a during the first pass over the rows before: rows are short and far apart.
template <class E>
LOWBIT_INLINE void prefetch_rows(const GemmArgs& x, int64_t first, int64_t count) {
  const int64_t bytes = x.quads * 4 * static_cast<int64_t>(sizeof(typename E::A));
  const char* a = static_cast<const char*>(x.a) + first * x.a_stride;
  for (const char* const end = a + count * x.a_stride; a < end; a += x.a_stride)
    for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(a + i);
}

// `count` tiles of consecutive rows in `Blocks` adjacent panels.
template <class E, int Rows, int Blocks, Prefetch Fetch, bool Segmented, int Chains>
__attribute__((noinline)) void tiles_below(const GemmArgs& given, int64_t block, int64_t row, int64_t count,
                                           int64_t other) {
  constexpr int kPer = kGemmCols / E::group, kGroups = Blocks * kPer;
  constexpr int kWide = E::wide(Rows) < kGroups ? E::wide(Rows) : kGroups;
  const GemmArgs x = given;  // a copy, as in strip
  for (; count > 0; --count, row += Rows)
    for (int g = 0; g < kGroups; g += kWide)
      tile<E, Rows, kWide, Fetch, Segmented, Chains>(x, row, block * kPer + g, other);
}

// Splits rows into tiles of nearly equal height: a tile of one row costs half as much as a full one. In units of
// a_rows; the first `taller` tiles have one more than the others.
template <class E>
struct TileRows {
  static constexpr int64_t kMost = E::max_rows / E::a_rows;
  int64_t tiles, rows, taller;

  explicit TileRows(int64_t all)
      : tiles(((all + E::a_rows - 1) / E::a_rows + kMost - 1) / kMost),
        rows((all + E::a_rows - 1) / E::a_rows / tiles),
        taller((all + E::a_rows - 1) / E::a_rows % tiles) {}
  int64_t of(int64_t tile) const { return rows + (tile < taller); }
  int64_t first(int64_t tile) const { return tile * rows + (tile < taller ? tile : taller); }
};

template <class E, int Rows>
constexpr int chains_of() {
  if constexpr (requires { E::chains(Rows); }) return E::chains(Rows);
  return 1;
}

// Tiles [tile, end) of a panel, or of two.
template <class E, int Blocks, Prefetch Fetch, bool Segmented>
LOWBIT_INLINE void some_tiles(const GemmArgs& x, const TileRows<E>& t, int64_t block, int64_t tile, int64_t end,
                              int64_t other = 0) {
  while (tile < end) {
    const int64_t count = (tile < t.taller && t.taller < end ? t.taller : end) - tile;
    with_rows<E::max_rows>(t.of(tile), [&]<int Rows>() {
      constexpr int kChains = chains_of<E, Rows>();
      constexpr int kEnough =
          5;  // rows of which two panels hide a latency of five cycles at two dot products per cycle
      if constexpr (Blocks > 1 && Rows >= kEnough)
        if (x.quads <= kShortSum)  // adding two accumulators would cost more than latency
          return tiles_below<E, Rows, Blocks, Fetch, Segmented, 1>(x, block, t.first(tile), count, other);
      tiles_below<E, Rows, Blocks, Fetch, Segmented, kChains>(x, block, t.first(tile), count, other);
    });
    tile += count;
  }
}

// One panel at a time, for all rows: the first tile reads it from memory and prefetches, the others read it from L1. b
// is read in order, which gives the best DRAM bandwidth.
template <class E, bool Segmented>
LOWBIT_INLINE void one_block(const GemmArgs& x, const TileRows<E>& t, int64_t block) {
  constexpr int64_t kFew = 4;
  if (t.tiles == 1 && t.of(0) <= kFew) {
    some_tiles<E, 1, kForFewRows, Segmented>(x, t, block, 0, 1);
  } else {
    some_tiles<E, 1, kForMoreRows, Segmented>(x, t, block, 0, 1);
    some_tiles<E, 1, kNothing, Segmented>(x, t, block, 1, t.tiles);
  }
}

// Two panels at a time. A few tiles share the prefetch of the next two panels, so that memory is busy for longer than
// the first tile. With many tiles the time of the prefetch hardly matters.
template <class E, bool Segmented>
LOWBIT_INLINE void two_blocks(const GemmArgs& x, const TileRows<E>& t, int64_t block) {
  constexpr int64_t kFewTiles = 8;
  if (t.tiles == 1) {
    some_tiles<E, 2, kForFewRowsOfPairs, Segmented>(x, t, block, 0, 1);
  } else if (t.tiles <= kFewTiles) {
    some_tiles<E, 2, kOtherBlock, Segmented>(x, t, block, 0, 1, 2 * x.b_stride);
    some_tiles<E, 2, kOtherBlock, Segmented>(x, t, block, 1, 2, 3 * x.b_stride);
    some_tiles<E, 2, kNothing, Segmented>(x, t, block, 2, t.tiles);
  } else {
    some_tiles<E, 2, kNothing, Segmented>(x, t, block, 0, t.tiles);
  }
}

template <class E, bool Segmented>
void block_by_block(const GemmArgs& x, int64_t groups, const TileRows<E> t) {
  static_assert(E::a_rows == 1);
  constexpr int64_t kPer = kGemmCols / E::group;
  const int64_t blocks = groups / kPer;
  int64_t block = 0;
  if constexpr (requires { E::by_pairs; })
    if (x.paired)
      for (; block + 2 <= blocks; block += 2) two_blocks<E, Segmented>(x, t, block);
  for (; block < blocks; ++block) one_block<E, Segmented>(x, t, block);
  // The columns that are needed of the last panel.
  if (groups % kPer != 0)
    for (int64_t tile = 0; tile < t.tiles; ++tile)
      with_rows<E::max_rows>(t.of(tile), [&]<int Rows>() {
        strip<E, Rows, kNothing, Segmented, 1>(x, t.first(tile), blocks * kPer, groups);
      });
}

// Column ranges of b that stay in L1 for all rows. With few rows there is little arithmetic per byte of b, so that b is
// prefetched.
template <class E, bool Segmented>
void strip_by_strip(const GemmArgs& x, int64_t groups, const TileRows<E> t) {
  constexpr int64_t kPer = kGemmCols / E::group, kFewTiles = 3;
  constexpr int64_t kLeast = E::wide(E::max_rows) > 2 * kPer ? E::wide(E::max_rows) : 2 * kPer;
  const int64_t in_l1 = kStripBytes / (x.quads * kQuadBytes) * kPer / kLeast * kLeast;
  const int64_t step = in_l1 > kLeast ? in_l1 : kLeast;
  for (int64_t g = 0; g < groups; g += step) {
    const int64_t end = g + step < groups ? g + step : groups;
    for (int64_t tile = 0; tile < t.tiles; ++tile)
      with_rows<TileRows<E>::kMost>(t.of(tile), [&]<int Rows>() {
        const int64_t row = t.first(tile);
        if (g == 0 && tile + 1 < t.tiles) prefetch_rows<E>(x, (row + Rows) * E::a_rows, t.of(tile + 1) * E::a_rows);
        if (tile == 0 && t.tiles <= kFewTiles) {
          strip<E, Rows * E::a_rows, kForStrips, Segmented>(x, 0, g, end);
        } else {
          strip<E, Rows * E::a_rows, kNothing, Segmented>(x, row * E::a_rows, g, end);
        }
      });
  }
}

template <class E, bool Segmented>
void gemm_of(const GemmArgs& x) {
  const int64_t groups = (x.columns + E::group - 1) / E::group;
  if constexpr (E::by_block) {
    block_by_block<E, Segmented>(x, groups, TileRows<E>(x.rows));
  } else {
    strip_by_strip<E, Segmented>(x, groups, TileRows<E>(x.rows));
  }
}

template <class E>
void gemm(const GemmArgs& x) {
  x.segments == nullptr ? gemm_of<E, false>(x) : gemm_of<E, true>(x);
}

template <class A, bool Summed>
LOWBIT_INLINE int32_t packed(const uint8_t* codes, int64_t n, bool is_signed, A* out) {
  int32_t sum = 0;
  const auto each = [&](const auto& to_a) {
    for (int64_t i = 0; i < n; ++i) {
      out[i] = to_a(codes[i]);
      if constexpr (Summed) sum += out[i];
    }
  };
  if (!Summed && sizeof(A) == 1 && is_signed == std::is_signed_v<A>) {
    std::memcpy(out, codes, static_cast<size_t>(n));
  } else if constexpr (sizeof(A) == 1) {
    const uint8_t flip = is_signed == std::is_signed_v<A> ? 0 : 0x80;
    each([flip](uint8_t c) { return static_cast<A>(c ^ flip); });
  } else if (is_signed) {
    each([](uint8_t c) { return static_cast<A>(static_cast<int8_t>(c)); });
  } else {
    each([](uint8_t c) { return static_cast<A>(c); });
  }
  return sum;
}

template <class A>
static int32_t pack_a(const uint8_t* codes, int64_t n, bool is_signed, bool summed, void* to, int64_t padded) {
  A* out = static_cast<A*>(to);
  const int32_t sum = summed ? packed<A, true>(codes, n, is_signed, out) : packed<A, false>(codes, n, is_signed, out);
  for (int64_t i = n; i < padded; ++i) out[i] = 0;
  return sum;
}

template <class E>
int64_t peak(int64_t rounds) {
  constexpr int kAccs = E::max_rows / E::a_rows * E::wide(E::max_rows), kRepeats = 8;
  alignas(64) static const int8_t ones[2 * kQuadBytes * 2] = {1};
  typename E::Acc acc[kAccs];
#pragma GCC unroll 32
  for (int i = 0; i < kAccs; ++i) acc[i] = typename E::Acc{};
  for (int64_t r = 0; r < rounds; ++r) {
    asm volatile("" ::: "memory");  // otherwise compilers multiply once for all rounds
    const typename E::Quad a = E::load_a(reinterpret_cast<const char*>(ones), kQuadBytes);
    const typename E::Cols b = E::load_b(ones);
#pragma GCC unroll 8
    for (int repeat = 0; repeat < kRepeats; ++repeat)
#pragma GCC unroll 32
      for (int i = 0; i < kAccs; ++i) E::dot(acc[i], a, b);
  }
  int32_t out[2 * kGemmCols];
#pragma GCC unroll 32
  for (int i = 0; i < kAccs; ++i) {
    E::template store<false>(acc[i], out, kGemmCols, nullptr, 0);
    asm volatile("" ::"r"(out) : "memory");
  }
  return rounds * kRepeats * kAccs * E::group * E::a_rows * E::step * 8;
}

// Any: an engine for any codes; the others, where an ISA has them, for codes of which pairs, or fours, do not saturate.
template <class Any, class Pairs = Any, class Fours = Pairs>
struct GemmRows {
  template <GemmFit Fit>
  using Engine = std::conditional_t<Fit == GemmFit::any, Any, std::conditional_t<Fit == GemmFit::pairs, Pairs, Fours>>;
  template <class E>
  static constexpr GemmRow row(GemmFit fit) {
    using A = typename E::A;
    constexpr GemmOperand codes = std::is_signed_v<A> ? GemmOperand::s8 : GemmOperand::u8;
    constexpr GemmOperand operand = sizeof(A) == 2 ? GemmOperand::s16 : codes;
    return {fit, E::name, operand, E::max_rows, E::a_rows, gemm<E>, pack_a<A>, E::is_one ? peak<E> : nullptr};
  }
  static constexpr GemmRow rows[] = {
#define ROW(fit) row<Engine<GemmFit::fit>>(GemmFit::fit),
#include "kernels/gemm/kernels.inc"
#undef ROW
  };
};

}  // namespace lowbit
