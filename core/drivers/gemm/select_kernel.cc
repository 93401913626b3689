#include <algorithm>
#include <cstring>

#include "base/threads.h"
#include "drivers/gemm/gemm.h"

namespace lowbit {
namespace {

// In vectors that every x86-64 and ARM CPU has, several at a time: it must take no time beside the product.
uint8_t largest_code(const uint8_t* codes, int64_t n) {
  typedef uint8_t Vector __attribute__((vector_size(16)));
  constexpr int64_t kVectors = 4, kStep = kVectors * static_cast<int64_t>(sizeof(Vector));
  Vector most[kVectors] = {};
  int64_t i = 0;
  for (; i + kStep <= n; i += kStep) {
    for (int64_t j = 0; j < kVectors; ++j) {
      Vector v;
      std::memcpy(&v, codes + i + j * static_cast<int64_t>(sizeof(v)), sizeof(v));
      most[j] = v > most[j] ? v : most[j];
    }
  }
  uint8_t found = 0;
  for (; i < n; ++i) found = std::max(found, codes[i]);
  for (const Vector& v : most)
    for (size_t k = 0; k < sizeof(v); ++k) found = std::max(found, v[k]);
  return found;
}

// Of all codes of a, by several threads where there are many. Gathered rows: of the array they come from.
uint8_t largest_code(const CodeRows& a, int64_t k) {
  constexpr int64_t kParts = 64, kLeast = 1 << 16;
  const bool is_run = a.codes == nullptr || a.stride == k;
  const uint8_t* from = a.codes == nullptr ? a.source : a.codes;
  const int64_t n = a.codes == nullptr ? a.source_bytes : a.rows * a.stride;
  const int64_t step = round_up(std::max(kLeast, ceil_div(n, kParts)), is_run ? 1 : a.stride);
  uint8_t most[kParts + 1] = {};
  parallel_for(ceil_div(n, step), [&](int64_t i) {
    const int64_t first = i * step, end = std::min(n, first + step);
    if (is_run) {
      most[i] = largest_code(from + first, end - first);
    } else {
      for (int64_t at = first; at < end; at += a.stride) most[i] = std::max(most[i], largest_code(from + at, k));
    }
  });
  if (a.codes == nullptr) most[kParts] = a.padding;
  return *std::max_element(most, most + kParts + 1);
}

}  // namespace

const GemmRow& select_kernel(const CodeRows& a, const PackedMatrix& b) {
  const KernelTable<GemmRow> kernels = gemm_rows(active_isa());
  const GemmRow &any = kernels[b.kernel(255)], &small = kernels[b.kernel(127)];
  if (a.is_signed || any.run == small.run) return any;
  return kernels[b.kernel(largest_code(a, b.k))];
}

}  // namespace lowbit
