// c[m][n] (+)= sum over k of a[m][k] * b[k][n], exact in int32: products of codes, before zero points and scales.
//
// b is packed once, alike for every ISA: pieces of at most kGemmDepth of k, in a piece blocks of kGemmCols columns, in
// a block k by fours ("quads"), in a quad the four bytes of a column side by side; s8, zeros beyond k and n. a is
// packed on the fly: rows of quads, zeros beyond k, in the type the ISA multiplies by:
//   s16   codes as they are. Widening: pairs of products never overflow 32 bits (vpmaddwd).
//   u8    codes as they are, or s8 codes + 128 (VNNI multiplies u8 by s8)
//   s8    codes as they are, or u8 codes - 128 (sdot, smmla, smull)
// What the 128 adds is a zero point like any other, taken out afterwards with the columns' sums.
//
// Roofline: 2 operations a product; a tile of r rows and c columns loads r + c quads for r * c * 4 products, so that
// arithmetic is the limit: AVX2 2 vpmaddwd = 32 products a cycle, AVX-512 64 VNNI products for each vpdpbusd unit.
#pragma once
#include "base/arch.h"
#include "base/types.h"

namespace lowbit {

constexpr int kGemmCols = 16;     // columns of a packed block
constexpr int kGemmQuads = 2;     // k is padded to so many quads, which smmla takes at once
constexpr int kGemmDepth = 1152;  // of a piece at most: its blocks and rows of a task fit L2

// A run of quads that lie side by side in a.
struct GemmSegment {
  int64_t offset;  // bytes from where a row starts
  int64_t quads;   // a multiple of kGemmQuads, and not 0
};

struct GemmArgs {
  const void* a;     // [rows, rounded up to at_once][quads * 4]
  int64_t a_stride;  // bytes from row to row
  int64_t rows;
  const int8_t* b;   // the first block, at the first quad
  int64_t b_stride;  // bytes from block to block of the piece
  int64_t columns;   // that are looked at: a kernel may stop at whole vectors of them
  int64_t quads;     // a multiple of kGemmQuads, and not 0
  int32_t* c;        // [rows, rounded up to at_once][c_stride], whole blocks of columns of it
  int64_t c_stride;
  // What the sums are added to, laid out as c: c itself, one row for all (from_stride 0), or null for nothing.
  const int32_t* from;
  int64_t from_stride;
  // Where the quads of a row of a are, if not all side by side; null: they are. Rows may overlap.
  const GemmSegment* segments;
  int64_t segment_count;
  // Two blocks of columns at a time, where the ISA has registers for it. CPUs that start two dot products a cycle need
  // it: a block alone takes a load for each.
  bool paired;
};

enum class GemmOperand : int { s16 = 0, u8 = 1, s8 = 2 };

struct GemmRow {
  const char* name;  // how it multiplies
  GemmOperand a;
  int rows;     // of a full tile: multiples of it waste nothing
  int at_once;  // rows that are computed together, of which 1 or 2
  void (*run)(const GemmArgs&);
  // n codes of one row, s8 or u8, to a's type, then zeros up to `padded`. Returns the sum of what was written if
  // `summed`, which takes longer, else 0.
  int32_t (*pack_a)(const uint8_t* codes, int64_t n, bool is_signed, bool summed, void* to, int64_t padded);
  // A tile's dot products over and over, with nothing loaded or stored for them: what the arithmetic alone could reach.
  // Returns the operations done, two a product. Null where compilers would not let that be measured.
  int64_t (*peak)(int64_t rounds);
};

// rows[0] serves any codes. rows[1] serves those of which no two products of neighbours k = 2i and 2i + 1 reach beyond
// 16 bits: vpmaddubsw adds them there. rows[2] serves those of which no four do, two neighbours of a quad at an even
// place and the same two of the next: see PackedMatrix::kernel. On ISAs without it all are the same.
constexpr int kGemmRows = 3;
const GemmRow* gemm_rows(Isa isa);

}  // namespace lowbit
