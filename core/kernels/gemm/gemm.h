// c[m][n] (+)= sum over k of a[m][k] * b[k][n], exact in int32, before zero points and scales.
//
// b is packed once, for every ISA alike: k-blocks of at most kGemmDepth, each in panels of kGemmCols columns. A panel
// holds k by fours ("quads"), the four bytes of a column next to each other; s8, zero-padded in k and n. a is packed on
// the fly: rows of quads, zero-padded in k, in the type that the ISA multiplies by:
//   s16   the codes. Widening: pairs of products never overflow 32 bits (vpmaddwd).
//   u8    the codes, or s8 codes + 128 (VNNI multiplies u8 by s8)
//   s8    the codes, or u8 codes - 128 (sdot, smmla, smull)
// The 128 is a zero point like any other, corrected by the epilogue with the sums of columns.
//
// Roofline: 2 operations per product. A tile of r rows and c columns loads r + c quads for r * c * 4 products, so that
// arithmetic is the limit: 32 products per cycle with two vpmaddwd of AVX2, 64 per vpdpbusd unit of AVX-512.
#pragma once
#include "base/types.h"
#include "kernels/families.h"

namespace lowbit {

constexpr int kGemmCols = 16;     // columns of a panel
constexpr int kGemmQuads = 2;     // k is padded to a multiple of this many quads, which smmla multiplies at once
constexpr int kGemmDepth = 1152;  // of a k-block at most: its panels and the rows of a task fit L2

// A run of consecutive quads of a row of a.
struct GemmSegment {
  int64_t offset;  // in bytes, from the start of the row
  int64_t quads;   // a multiple of kGemmQuads, and not 0
};

struct GemmArgs {
  const void* a;     // [rows, rounded up to at_once][quads * 4]
  int64_t a_stride;  // row stride in bytes
  int64_t rows;
  const int8_t* b;   // the first panel, at the first quad
  int64_t b_stride;  // bytes from panel to panel of the k-block
  int64_t columns;   // that are needed: a kernel may stop at a whole vector of them
  int64_t quads;     // a multiple of kGemmQuads, and not 0
  int32_t* c;        // [rows, rounded up to at_once][c_stride], whole panels
  int64_t c_stride;
  // Initial values of the accumulators, laid out as c: c itself, one row for all (from_stride 0), or null for 0.
  const int32_t* from;
  int64_t from_stride;
  // The segments of each row of a; null: its quads are contiguous. Rows may overlap.
  const GemmSegment* segments;
  int64_t segment_count;
  // Two panels at a time, where the ISA has registers for it. CPUs that start two dot products per cycle need it: with
  // one panel, each dot product takes a load.
  bool paired;
};

// The codes that a row serves: any; those of which no two products of neighbours k = 2i and 2i + 1 exceed 16 bits,
// where vpmaddubsw adds them; or those of which no four do, two neighbours of a quad at an even place and the same two
// of the next (PackedMatrix::kernel). An ISA without such instructions has the same kernel in all three rows.
enum class GemmFit : int { any = 0, pairs = 1, fours = 2 };
constexpr int kGemmFits = 3;

enum class GemmOperand : int { s16 = 0, u8 = 1, s8 = 2 };

struct GemmRow {
  GemmFit fit;
  const char* method;  // the instruction that multiplies
  GemmOperand a;
  int rows;     // of a full tile
  int at_once;  // rows that an instruction multiplies: 1 or 2
  void (*run)(const GemmArgs&);
  // Packs n codes of one row, s8 or u8, zero-padded to `padded`. Returns their sum if `summed`, which takes longer,
  // else 0.
  int32_t (*pack_a)(const uint8_t* codes, int64_t n, bool is_signed, bool summed, void* to, int64_t padded);
  // Repeats the dot products of a tile without loads and stores, to measure peak throughput. Returns the number of
  // operations, two per product. Null where compilers would remove the loop.
  int64_t (*peak)(int64_t rounds);
};

}  // namespace lowbit
