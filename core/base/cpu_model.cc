#include "base/cpu_model.h"

#include <unistd.h>

namespace lowbit {
namespace {

// CPUs with 48 KiB of L1 and more (Zen 5, and Intel's from Ice Lake on) start two 512-bit operations per cycle.
constexpr int64_t kTwoPortL1 = 48 << 10;

CpuModel detect() {
  CpuModel cpu;
#ifdef _SC_LEVEL1_DCACHE_SIZE
  const auto bytes = [](int level) { return static_cast<int64_t>(sysconf(level) > 0 ? sysconf(level) : 0); };
  cpu.l1 = bytes(_SC_LEVEL1_DCACHE_SIZE), cpu.l2 = bytes(_SC_LEVEL2_CACHE_SIZE), cpu.l3 = bytes(_SC_LEVEL3_CACHE_SIZE);
#endif
  cpu.dot_ports = cpu.l1 >= kTwoPortL1 ? 2 : 1;
  return cpu;
}

}  // namespace

const CpuModel& cpu_model() {
  static const CpuModel& cpu = *new CpuModel(detect());  // never destroyed: daemon threads outlive static destructors
  return cpu;
}

}  // namespace lowbit
