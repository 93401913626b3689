// The tile loop, once. An engine E says what a dot product of quads is on its ISA:
//
//   A                      element of a:  int16_t, uint8_t or int8_t;  operand  the same as data
//   group                  columns of one accumulator: 4, 8 or 16
//   a_rows                 rows that one accumulator spans: 1, or 2 where the instruction multiplies matrices
//   step                   quads a step takes: 1, or kGemmQuads
//   Quad, load_a(p, stride)  a's step at p, for every column (of a_rows rows)
//   Cols, load_b(p)        b's step: `group` columns; bytes from one quad to the next are kQuadBytes
//   Acc, zero(), dot(acc&, a, b), store<Accumulate>(acc, c, stride)   to c[a_rows][group]
//   is_one                 whether compilers see dot as one operation, and cannot multiply once for many sums
//   max_rows, wide(rows)   rows of a full tile; groups side by side in a tile of so many rows
#pragma once
#include <type_traits>

#include "kernels/gemm/gemm.h"
#include "simd/vec.h"

namespace lowbit {

constexpr int64_t kQuadBytes = kGemmCols * 4;

// Where column group g of b starts.
template <class E>
LOWBIT_INLINE const int8_t* group_of(const GemmArgs& x, int64_t g) {
  constexpr int64_t kPer = kGemmCols / E::group;
  return x.b + g / kPer * x.b_stride + g % kPer * (E::group * 4);
}

// Groups g, g + 1, ... of whole blocks, the next block `apart` groups after the one before.
template <class E, int Rows, int Wide>
__attribute__((noinline)) void tile(const GemmArgs& x, int64_t row, int64_t g, int64_t apart = kGemmCols / E::group) {
  constexpr int kPer = kGemmCols / E::group;
  const auto at_group = [&](int j) { return g + j / kPer * apart + j % kPer; };
  constexpr int kPairs = Rows / E::a_rows;
  typename E::Acc acc[kPairs][Wide];
  for (int i = 0; i < kPairs; ++i)
    for (int j = 0; j < Wide; ++j) acc[i][j] = E::zero();
  const char* a = static_cast<const char*>(x.a) + row * x.a_stride;
  const int8_t* b[Wide];
  for (int j = 0; j < Wide; ++j) b[j] = group_of<E>(x, at_group(j));
  for (int64_t q = 0; q < x.quads; q += E::step) {
    typename E::Cols cols[Wide];
    for (int j = 0; j < Wide; ++j) cols[j] = E::load_b(b[j] + q * kQuadBytes);
    const char* at = a + q * 4 * static_cast<int64_t>(sizeof(typename E::A));
    for (int i = 0; i < kPairs; ++i) {
      const typename E::Quad v = E::load_a(at + i * E::a_rows * x.a_stride, x.a_stride);
      for (int j = 0; j < Wide; ++j) E::dot(acc[i][j], v, cols[j]);
    }
  }
  for (int i = 0; i < kPairs; ++i) {
    for (int j = 0; j < Wide; ++j) {
      int32_t* c = x.c + (row + i * E::a_rows) * x.c_stride + at_group(j) * E::group;
      if (x.accumulate) {
        E::template store<true>(acc[i][j], c, x.c_stride);
      } else {
        E::template store<false>(acc[i][j], c, x.c_stride);
      }
    }
  }
}

// All groups for Rows rows, as many side by side as registers allow.
template <class E, int Rows, int Wide = E::wide(Rows)>
void strip(const GemmArgs& x, int64_t row, int64_t g, int64_t end) {
  for (; g + Wide <= end; g += Wide) tile<E, Rows, Wide>(x, row, g);
  if constexpr (Wide > 1)
    if (g < end) strip<E, Rows, Wide / 2>(x, row, g, end);
}

// Calls f.operator()<n>() for the n in [1, Max] that is `rows`.
template <int Max, class F>
LOWBIT_INLINE void with_rows(int64_t rows, const F& f) {
  if (rows == Max) {
    f.template operator()<Max>();
  } else if constexpr (Max > 1) {
    with_rows<Max - 1>(rows, f);
  }
}

template <class E>
void gemm(const GemmArgs& x) {
  constexpr int64_t kPer = kGemmCols / E::group;
  const int64_t groups = (x.columns + E::group - 1) / E::group,
                padded = (x.rows + E::a_rows - 1) / E::a_rows;  // in units of a_rows
  constexpr int64_t kTile = E::max_rows / E::a_rows;
  const auto rows_at = [&](int64_t i) { return padded - i < kTile ? padded - i : kTile; };
  // One row reads all of b and does little with it: from four places at a time, which memory gives faster than from
  // one.
  constexpr int kPlaces = 4;
  if constexpr (kPlaces * kPer <= 8) {  // sums that registers hold
    if (padded == 1 && groups >= 2 * kPlaces * kPer) {
      const int64_t apart = groups / kPer / kPlaces * kPer;
      for (int64_t g = 0; g < apart; g += kPer) tile<E, E::a_rows, kPlaces * kPer>(x, 0, g, apart);
      strip<E, E::a_rows>(x, 0, kPlaces * apart, groups);
      return;
    }
  }
  // A strip of columns that stays in L1 while all rows pass it.
  constexpr int64_t kStrip = E::wide(E::max_rows) > 2 * kPer ? E::wide(E::max_rows) : 2 * kPer;
  for (int64_t g = 0; g < groups; g += kStrip) {
    const int64_t end = g + kStrip < groups ? g + kStrip : groups;
    for (int64_t i = 0; i < padded; i += kTile)
      with_rows<kTile>(rows_at(i), [&]<int Rows>() { strip<E, Rows * E::a_rows>(x, i * E::a_rows, g, end); });
  }
}

template <class A>
int32_t pack_a(const uint8_t* codes, int64_t n, bool is_signed, void* to, int64_t padded) {
  A* out = static_cast<A*>(to);
  int32_t sum = 0;
  if constexpr (sizeof(A) == 2) {
    if (is_signed) {
      for (int64_t i = 0; i < n; ++i) sum += out[i] = static_cast<int8_t>(codes[i]);
    } else {
      for (int64_t i = 0; i < n; ++i) sum += out[i] = codes[i];
    }
  } else {
    const uint8_t flip = is_signed == std::is_signed_v<A> ? 0 : 0x80;
    for (int64_t i = 0; i < n; ++i) sum += out[i] = static_cast<A>(codes[i] ^ flip);
  }
  for (int64_t i = n; i < padded; ++i) out[i] = 0;
  return sum;
}

template <class E>
int64_t peak(int64_t rounds) {
  constexpr int kAccs = E::max_rows / E::a_rows * E::wide(E::max_rows), kRepeats = 8;
  alignas(64) static const int8_t ones[2 * kQuadBytes * 2] = {1};
  typename E::Acc acc[kAccs];
  for (int i = 0; i < kAccs; ++i) acc[i] = E::zero();
  for (int64_t r = 0; r < rounds; ++r) {
    asm volatile("" ::: "memory");  // or compilers would multiply once for all rounds
    const typename E::Quad a = E::load_a(reinterpret_cast<const char*>(ones), kQuadBytes);
    const typename E::Cols b = E::load_b(ones);
    for (int repeat = 0; repeat < kRepeats; ++repeat)
      for (int i = 0; i < kAccs; ++i) E::dot(acc[i], a, b);
  }
  int32_t out[2 * kGemmCols];
  for (int i = 0; i < kAccs; ++i) {
    E::template store<false>(acc[i], out, kGemmCols);
    asm volatile("" ::"r"(out) : "memory");
  }
  return rounds * kRepeats * kAccs * E::group * E::a_rows * E::step * 8;
}

template <class E>
constexpr GemmRow gemm_row = {
    E::name, E::operand, E::max_rows, gemm<E>, pack_a<typename E::A>, E::is_one ? peak<E> : nullptr};

// `Exact` for any codes, `Safe` where pairs are known not to saturate.
template <class Exact, class Safe = Exact>
struct GemmTable {
  static constexpr GemmRow rows[kGemmRows] = {gemm_row<Exact>, gemm_row<Safe>};
};

}  // namespace lowbit
