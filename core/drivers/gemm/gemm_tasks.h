// How a product of codes is cut into tasks, and which of them threads share.
#pragma once
#include <algorithm>

#include "base/threads.h"
#include "drivers/gemm/packed_matrix.h"
#include "kernels/finish/finish.h"

namespace lowbit {

// A task's rows of a and blocks of b: both in L2, for one piece of k. Half as many blocks again are still one task: a
// small one costs as much packing as a whole. Where k is one piece, and short, there are more of them.
constexpr int64_t kTaskRows = 96, kTaskBlocks = 16, kMaxBlocks = kTaskBlocks * 3 / 2;
constexpr int64_t kFewRows = 18;
constexpr int64_t kReadAsRows = 8;          // as long as these are multiplied
constexpr int64_t kWorthAThread = 1 << 20;  // products: what takes as long as it takes another thread to wake up

// Whether rows so many bytes apart are all in the same few places of L1.
inline bool is_crowded(int64_t stride) { return stride % 4096 == 0; }

// Whether so many rows, written a tile's width each before any goes on, are too many for the places of L1 that they
// meet in: each store then waits for an older line to leave.
inline bool is_crowded(int64_t stride, int64_t rows) {
  constexpr int64_t kPlaces = 64, kLines = 8, kWritten = 2;
  int8_t lines_at[kPlaces] = {};
  for (int64_t r = 0; r < rows; ++r)
    if (++lines_at[r * stride / kCacheLine % kPlaces] > kLines / kWritten) return true;
  return false;
}

// Bytes from row to row, of at least so many, for which they are not.
inline int64_t roomy(int64_t bytes) { return is_crowded(lines(bytes)) ? lines(bytes) + kCacheLine : lines(bytes); }

// Threads it is worth. Few rows take as long as b takes to be read.
inline int64_t worthwhile_threads(const PackedMatrix& b, int64_t m) {
  return std::clamp<int64_t>(std::max(m, kReadAsRows) * b.n * b.k / kWorthAThread, 1, num_threads());
}

// Blocks of a task at most, but for what is left over: as many as a piece of the usual depth has room for.
// in_parts: sums need not be there all at once.
inline int64_t usual_blocks(const PackedMatrix& b, bool in_parts) {
  return b.quads <= b.piece && in_parts
             ? std::max(kTaskBlocks, kTaskBlocks * kUsualQuads / std::max<int64_t>(1, b.quads))
             : kTaskBlocks;
}

// Whether threads share rows rather than columns. They do where each can keep all of b: two that write the same line
// wait for one another, and rows of columns meet in one line each. But sums go to their place row below row, for which
// the CPU asks ahead, and so takes the next thread's rows from it: two were as slow as one (Zen 5, rows of 8 KiB).
inline bool shares_rows(const PackedMatrix& b, Result result) {
  return b.blocks <= kMaxBlocks || (result != Result::s32 && b.blocks * kGemmCols * b.quads * 4 < kRoomy);
}

// Blocks of a task: as equal as whole ones allow, and enough tasks that no thread is without. Few rows read b once, in
// order: as much of it as their sums have room.
inline int64_t task_blocks(const PackedMatrix& b, int64_t m, int64_t row_tasks, Result result, bool in_parts) {
  const int64_t most = kTaskRows * kMaxBlocks / std::max<int64_t>(m, kFewRows);
  const int64_t whole = usual_blocks(b, in_parts);
  const int64_t usual =
      m <= kFewRows ? (b.blocks + most - 1) / most : std::max<int64_t>(1, (b.blocks + whole / 2 - 1) / whole);
  const int64_t threads = worthwhile_threads(b, m);
  const int64_t shares = shares_rows(b, result) ? (threads + row_tasks - 1) / row_tasks : threads;
  const int64_t tasks = std::max(usual, std::min(b.blocks, shares));
  return (b.blocks + tasks - 1) / tasks;
}

// Rows of a task: as equal as whole tiles allow.
inline int64_t task_rows(const GemmRow& kernel, const PackedMatrix& b, int64_t m, Result result) {
  const int64_t tasks = std::max<int64_t>(1, (m + kTaskRows - 1) / kTaskRows);
  const int64_t shares = std::clamp<int64_t>(m / (2 * kernel.rows), 1, worthwhile_threads(b, m));
  const int64_t parts = shares_rows(b, result) ? round_up(tasks, shares) : tasks;
  return std::min(kTaskRows, round_up((m + parts - 1) / parts, kernel.rows));
}

}  // namespace lowbit
