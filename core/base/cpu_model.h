// What drivers assume of a CPU when they cut work into tasks. A test may give a model of its own.
// docs/internals/gemm_schedule.md has the measurements behind the defaults.
#pragma once
#include <cstdint>

namespace lowbit {

struct CpuModel {
  // Detected: bytes of the data caches, 0 where the system does not say; bytes of a cache line; full-width dot products
  // that start per cycle.
  int64_t l1 = 0, l2 = 0, l3 = 0, line = 64;
  int dot_ports = 1;

  // L1: its sets, and the lines of a set that a tile may write before older ones must be evicted. (Zen 5)
  int64_t l1_sets = 64, l1_written_ways = 4;
  // A task: rows of a and column panels of b which, for one k-block, fit L2 together. (Zen 3, 4, 5)
  int64_t task_rows = 96, task_panels = 16;
  // Quads of a k-block; fewer where codes are widened to 16 bits and L2 is smaller than `wide_l2`. (Zen 4, Zen 3)
  int64_t k_block = 192, k_block_small_l2 = 128, wide_l2 = 1 << 20;
  // Rows up to which reading b dominates. A product of fewer rows than `gemv_rows` takes as long as one of that number.
  // (Zen 4)
  int64_t few_rows = 18, gemv_rows = 8;
  // Quads up to which accumulators whose lines alias in L1 are written `few_rows` at a time; with threads. (Zen 5)
  int64_t short_k = 32, short_k_threads = 96;
  // Multiply-adds that take as long as waking a thread. (Zen 3)
  int64_t thread_work = 1 << 20;
  // Bytes of b that each thread keeps in its own L2 while threads share rows. (Zen 5)
  int64_t shared_b = 1 << 20;
  // Bytes of activations that are packed, widened or quantized at once, so that they are read from L2 or L3. (Zen 3)
  int64_t staging = 4 << 20;
  // Bytes of image lines that are copied at once. (Zen 3)
  int64_t image_strip = 1 << 18;
};

// This machine's, detected once.
const CpuModel& cpu_model();

}  // namespace lowbit
