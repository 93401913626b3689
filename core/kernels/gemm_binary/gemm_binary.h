// GEMM of bits that stand for +1 and -1:  acc[m][n] = k - 2 * popcount(a_m xor b_n)
//
// A tile has up to kBinaryRows rows of a and kBinaryColumns columns of b. Byte i of all columns is contiguous, then
// byte i + 1, so a vector holds the same byte of many columns and counts need no sum across lanes. A tile is computed
// in blocks of at most `block` bytes of k, within which a count fits a byte; blocks are added in 16 bits. k is padded
// to a multiple of three bytes, with zeros in both operands.
#pragma once
#include "base/types.h"
#include "kernels/families.h"

namespace lowbit {

constexpr int64_t kBinaryRows = 64, kBinaryColumns = 64;
constexpr int64_t kBinaryTiles = 8;  // adjacent tiles of one epilogue, so that results are written in long runs
constexpr int64_t kBinaryStep = 3, kBinaryBlock = 30;
constexpr int64_t kBinaryExpandRows = 4;  // the least number of rows for which expanding the columns pays
constexpr int64_t kBinaryScratch = 2 * kBinaryBlock * kBinaryColumns;

// Rows of bits in the form that `dot` reads. codes has room for code_bytes * (rows, made even) * padded bytes.
struct BinaryPrepareArgs {
  const uint8_t* a;  // [rows][bytes], `stride` apart
  int64_t stride, rows, bytes;
  int64_t padded;     // bytes, rounded up to a multiple of kBinaryStep
  uint8_t last_mask;  // bits of a row's last byte that count
  void* codes;
};

struct BinaryDotArgs {
  const void* codes;             // of all rows, `padded` bytes each; those from `offset` on are multiplied
  int64_t padded, offset, rows;  // offset: a multiple of 2 * kBinaryStep
  const uint8_t* columns;        // [bytes][kBinaryColumns]
  bool expanded;                 // columns are the output of `expand`
  int64_t bytes;                 // of the block: a multiple of kBinaryStep
  uint16_t* counts;              // [rows][kBinaryColumns]: bits that differ
  bool add;                      // accumulate
};

// y = k - 2 * counts + fix, for rows of adjacent tiles; to f32: f32(that) * (sa * sb) + bias, every step rounded.
struct BinaryEpilogueArgs {
  const uint16_t* counts;  // [rows][kBinaryColumns] of the first tile
  int64_t next;            // stride from tile to tile
  int64_t rows, n;
  int32_t k;
  const int32_t* fix;  // laid out as counts, for a single tile; null: 0
  void* y;             // [rows][n], `stride` elements apart
  int64_t stride;
  const float* sa;  // one, or one per row
  bool sa_each;
  const float *sb, *bias;  // [n]
};

struct BinaryRow {
  Code code;           // b1
  const char* method;  // how bits are counted
  int64_t code_bytes;  // per byte of a prepared row
  int64_t block;       // largest block in bytes, a multiple of 2 * kBinaryStep; kBinaryBlock with `expand`
  void (*prepare)(const BinaryPrepareArgs&);
  void (*expand)(const uint8_t* columns, int64_t bytes, uint8_t* scratch);  // null: none
  void (*dot)(const BinaryDotArgs&);
  void (*epilogue_s32)(const BinaryEpilogueArgs&);
  void (*epilogue_f32)(const BinaryEpilogueArgs&);
};

// The number of blocks that 16 bits can count.
inline int64_t binary_most_blocks(const BinaryRow& row) { return 65535 / (8 * row.block); }

const BinaryRow& gemm_binary_row(Isa isa);  // with extensions of the CPU

}  // namespace lowbit
