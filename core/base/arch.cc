#include "base/arch.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "base/cpu_model.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace lowbit {
namespace {
// An emulator can run instructions that the CPU it emulates does not list.
#if defined(LOWBIT_EMULATED)
[[maybe_unused]] constexpr bool kEmulated = true;
#else
[[maybe_unused]] constexpr bool kEmulated = false;
#endif

using Features = std::vector<std::pair<std::string, bool>>;

#if defined(__x86_64__)
uint64_t xgetbv0() {
  uint32_t lo, hi;
  asm volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
  return (static_cast<uint64_t>(hi) << 32) | lo;
}

Features detect() {
  uint32_t a = 0, b = 0, c = 0, d = 0;
  __get_cpuid(1, &a, &b, &c, &d);
  const uint32_t c1 = c;
  const bool osxsave = (c1 >> 27) & 1;
  const uint64_t xcr0 = osxsave ? xgetbv0() : 0;
  const bool os_ymm = (xcr0 & 0x06) == 0x06;         // XMM and YMM state saved by the OS
  const bool os_zmm = (xcr0 & 0xe6) == 0xe6;         // ... and opmask and ZMM
  const bool os_tile = (xcr0 & 0x60000) == 0x60000;  // ... and AMX tiles
  uint32_t b7 = 0, c7 = 0, d7 = 0, a71 = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) {
    b7 = b, c7 = c, d7 = d;
    if (a >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d)) a71 = a;
  }
  const auto bit = [](uint32_t word, int i) { return ((word >> i) & 1) != 0; };
  return {
      {"sse2", true},
      {"ssse3", bit(c1, 9)},
      {"sse4.1", bit(c1, 19)},
      {"avx", os_ymm && bit(c1, 28)},
      {"avx2", os_ymm && bit(b7, 5)},
      {"fma", os_ymm && bit(c1, 12)},
      {"f16c", os_ymm && bit(c1, 29)},
      {"avx_vnni", os_ymm && bit(a71, 4)},
      {"avx512f", os_zmm && bit(b7, 16)},
      {"avx512dq", os_zmm && bit(b7, 17)},
      {"avx512bw", os_zmm && bit(b7, 30)},
      {"avx512vl", os_zmm && bit(b7, 31)},
      {"avx512_vbmi", os_zmm && bit(c7, 1)},
      {"avx512_vnni", os_zmm && (bit(c7, 11) || kEmulated)},
      {"avx512_bitalg", os_zmm && (bit(c7, 12) || kEmulated)},
      {"avx512_vpopcntdq", os_zmm && (bit(c7, 14) || kEmulated)},
      {"avx512_bf16", os_zmm && bit(a71, 5)},
      {"avx512_fp16", os_zmm && bit(d7, 23)},
      {"amx_tile", os_tile && bit(d7, 24)},
      {"amx_int8", os_tile && bit(d7, 25)},
      {"amx_bf16", os_tile && bit(d7, 22)},
  };
}
#elif defined(__aarch64__)
Features detect() {
#if defined(__linux__)
  const unsigned long cap = getauxval(AT_HWCAP), cap2 = getauxval(AT_HWCAP2);
  return {
      {"neon", (cap & HWCAP_ASIMD) != 0},      {"fp16", (cap & HWCAP_ASIMDHP) != 0},
      {"dotprod", (cap & HWCAP_ASIMDDP) != 0}, {"i8mm", (cap2 & (1ul << 13)) != 0},
      {"bf16", (cap2 & (1ul << 14)) != 0},     {"sve", (cap & HWCAP_SVE) != 0},
      {"sve2", (cap2 & (1ul << 1)) != 0},
  };
#else
  return {{"neon", true}};  // Apple silicon and others: AdvSIMD is part of the baseline
#endif
}
#else
Features detect() { return {}; }
#endif

// By Isa: its name, the ISA it extends, and the features it needs beyond that one's. Other architectures lack them.
constexpr struct {
  const char* name;
  Isa base;
  const char* features[4];
} kIsas[] = {
    {"scalar", Isa::scalar, {}},
    {"avx2", Isa::scalar, {"avx2", "fma", "f16c"}},
    {"avxvnni", Isa::avx2, {"avx_vnni"}},
    {"avx512", Isa::avx2, {"avx512f", "avx512bw", "avx512vl", "avx512dq"}},
    {"vnni", Isa::avx512, {"avx512_vnni"}},
    {"neon", Isa::scalar, {"neon"}},
    {"dotprod", Isa::neon, {"dotprod"}},
    {"i8mm", Isa::dotprod, {"i8mm"}},
    {"vpopcnt", Isa::avx512, {"avx512_vpopcntdq", "avx512_bitalg"}},
    {"vbmi", Isa::avx512, {"avx512_vbmi"}},
};

// The number of the ISA of this name that can be active, or kIsaCount.
int isa_called(const std::string& name) {
  int i = 0;
  while (i < kIsaCount && name != kIsas[i].name) ++i;
  return i;
}

// The best available ISA that is not above the one of this name; "" caps nothing.
int best_under(const std::string& cap) {
  int limit = std::min(isa_called(cap), kIsaCount - 1);
  while (!isa_available(static_cast<Isa>(limit))) --limit;
  return limit;
}

struct Dispatch {
  std::string cap;
  std::atomic<int> isa;
  Dispatch() {
    const char* env = std::getenv("LOWBIT_MAX_ISA");
    if (env != nullptr) cap = env;
    isa = best_under(cap);
  }
};

Dispatch& dispatch() {
  static Dispatch instance;
  return instance;
}

// CPUs with 48 KiB of L1 and more (Zen 5, and Intel's from Ice Lake on) start two 512-bit operations per cycle.
constexpr int64_t kTwoPortL1 = 48 << 10;

CpuModel detect_model() {
  CpuModel cpu;
#ifdef _SC_LEVEL1_DCACHE_SIZE
  const auto bytes = [](int level) { return static_cast<int64_t>(sysconf(level) > 0 ? sysconf(level) : 0); };
  cpu.l1 = bytes(_SC_LEVEL1_DCACHE_SIZE), cpu.l2 = bytes(_SC_LEVEL2_CACHE_SIZE), cpu.l3 = bytes(_SC_LEVEL3_CACHE_SIZE);
#endif
  cpu.dot_ports = cpu.l1 >= kTwoPortL1 ? 2 : 1;
  return cpu;
}

}  // namespace

const char* isa_name(Isa isa) { return kIsas[static_cast<int>(isa)].name; }

const Features& cpu_features() {
  static const Features& features = *new Features(detect());  // kept: daemon threads outlive static destructors
  return features;
}

bool has_feature(const char* name) {
  for (const auto& [key, value] : cpu_features())
    if (key == name) return value;
  return false;
}

std::string cpu_brand() {
#if defined(__x86_64__)
  uint32_t words[12] = {};
  uint32_t a = 0, b, c, d;
  if (!__get_cpuid(0x80000000u, &a, &b, &c, &d) || a < 0x80000004u) return "";
  for (uint32_t i = 0; i < 3; ++i)
    __get_cpuid(0x80000002u + i, &words[4 * i], &words[4 * i + 1], &words[4 * i + 2], &words[4 * i + 3]);
  char text[49] = {};
  std::memcpy(text, words, 48);
  return text;
#else
  return "";
#endif
}

bool isa_available(Isa isa) {
  const auto& needs = kIsas[static_cast<int>(isa)];
  for (const char* feature : needs.features)
    if (feature != nullptr && !has_feature(feature)) return false;
  return isa == Isa::scalar || isa_available(needs.base);
}

bool extends(Isa extension, Isa isa) {
  static const bool available[] = {isa_available(Isa::vpopcnt), isa_available(Isa::vbmi)};
  return (isa == Isa::avx512 || isa == Isa::vnni) && available[static_cast<int>(extension) - kIsaCount];
}

Isa active_isa() { return static_cast<Isa>(dispatch().isa.load(std::memory_order_relaxed)); }

const CpuModel& cpu_model() {
  static const CpuModel& cpu = *new CpuModel(detect_model());
  return cpu;
}

const std::string& max_isa() { return dispatch().cap; }

bool set_max_isa(const std::string& name) {
  if (!name.empty() && isa_called(name) == kIsaCount) return false;
  dispatch().cap = name;
  dispatch().isa = best_under(name);
  return true;
}

}  // namespace lowbit
