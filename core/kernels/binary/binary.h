// Dot products of bits that stand for +1 and -1:  acc[m][n] = k - 2 * popcount(a_m xor b_n)
//
// A tile is up to kBinaryRows rows of a by kBinaryColumns columns of b. The columns of b lie byte after byte side by
// side (byte i of all columns, then byte i + 1), so a vector holds the same byte of many columns and counts need no
// sum across lanes. Along k a tile is made in blocks of at most `block` bytes, within which a count fits a byte; blocks
// are added in 16 bits. Bytes come in threes, the last ones filled up with zeros on both sides.
#pragma once
#include "base/arch.h"
#include "base/types.h"

namespace lowbit {

constexpr int64_t kBinaryRows = 64, kBinaryColumns = 64;
constexpr int64_t kBinaryTiles = 8;  // side by side that are finished together: results are written in long runs
constexpr int64_t kBinaryStep = 3, kBinaryBlock = 30;
constexpr int64_t kBinaryExpandRows = 4;  // so many rows and more are worth an expansion of the columns
constexpr int64_t kBinaryScratch = 2 * kBinaryBlock * kBinaryColumns;

// Rows of bits as `dot` wants them. codes has room for code_bytes * (rows, made even) * padded bytes.
struct BinaryPrepareArgs {
  const uint8_t* a;  // [rows][bytes], `stride` apart
  int64_t stride, rows, bytes;
  int64_t padded;     // bytes made a multiple of kBinaryStep
  uint8_t last_mask;  // bits of a row's last byte that count
  void* codes;
};

struct BinaryDotArgs {
  const void* codes;             // of all rows, `padded` bytes each; those from `offset` on are multiplied
  int64_t padded, offset, rows;  // offset: a multiple of 2 * kBinaryStep
  const uint8_t* columns;        // [bytes][kBinaryColumns]
  bool expanded;                 // columns are as `expand` left them
  int64_t bytes;                 // of the block: a multiple of kBinaryStep
  uint16_t* counts;              // [rows][kBinaryColumns]: places that differ
  bool add;                      // to what is in counts already
};

// y = k - 2 * counts + fix, of rows of tiles side by side; as f32: f32(that) * (sa * sb) + bias, every step rounded.
struct BinaryFinishArgs {
  const uint16_t* counts;  // [rows][kBinaryColumns] of the first tile
  int64_t next;            // from there to those of the next
  int64_t rows, n;
  int32_t k;
  const int32_t* fix;  // beside counts of the first; null: 0. Only one tile has it.
  void* y;             // [rows][n], `stride` elements apart
  int64_t stride;
  const float* sa;  // one, or one a row
  bool sa_each;
  const float *sb, *bias;  // [n]
};

struct BinaryRow {
  Code code;           // b1
  const char* way;     // how bits are counted
  int64_t code_bytes;  // of a byte of a row, prepared
  int64_t block;       // bytes of a block at most, a multiple of 2 * kBinaryStep; kBinaryBlock where there is `expand`
  void (*prepare)(const BinaryPrepareArgs&);
  void (*expand)(const uint8_t* columns, int64_t bytes, uint8_t* scratch);  // null: there is no such form
  void (*dot)(const BinaryDotArgs&);
  void (*finish_s32)(const BinaryFinishArgs&);
  void (*finish_f32)(const BinaryFinishArgs&);
};

// Blocks that 16 bits can count.
inline int64_t binary_most_blocks(const BinaryRow& row) { return 65535 / (8 * row.block); }

constexpr int kBinaryKernels = 1;
const BinaryRow* binary_rows(Isa isa);
const BinaryRow* binary_rows_with_vpopcnt();  // null where this CPU has no vpopcntb
const BinaryRow& binary_row(Isa isa);         // the faster one

}  // namespace lowbit
