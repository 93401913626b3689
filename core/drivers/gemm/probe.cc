#include "drivers/gemm/probe.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "base/memory.h"
#include "kernels/gemm/gemm.h"
#include "kernels/peak/peak.h"

namespace lowbit {
namespace {

// The best rate of several runs, as other work on the machine only lowers it.
template <class Run>
double best_rate(int runs, Run&& run) {
  double best = 0;
  for (int i = 0; i < runs; ++i) {
    const auto start = std::chrono::steady_clock::now();
    const double done = run(i);
    best = std::max(best, done / std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

}  // namespace

double dot_limit() {
  constexpr int kRows = 2;  // without rows[2], which serves small codes only
  const KernelTable<GemmRow> rows = gemm_rows(active_isa());
  return best_rate(kRows * 40, [&](int i) {
    const GemmRow& row = rows[i % kRows];
    return row.peak == nullptr ? 0.0 : static_cast<double>(row.peak(2000));
  });
}

double fma_limit() {
  const PeakRow& row = peak_rows(active_isa()).front();
  return best_rate(80, [&](int) { return static_cast<double>(row.fma(4000)); });
}

double read_limit(int64_t bytes, double seconds) {
  const PeakRow& row = peak_rows(active_isa()).front();
  const int64_t n = bytes / 4 / kReadStep * kReadStep, rounds = std::max<int64_t>(1, (1 << 20) / bytes);
  const Aligned<float> block = aligned<float>(n);
  std::fill(block.get(), block.get() + n, 1.0f);  // else all pages are mapped to the zero page
  volatile float sink = 0;
  double best = 0;
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  do {
    best = std::max(best, best_rate(2, [&](int) {
                      sink = row.read(block.get(), n, rounds);
                      return static_cast<double>(rounds * n * 4);
                    }));
  } while (std::chrono::steady_clock::now() < end);
  (void)sink;
  return best;
}

}  // namespace lowbit
