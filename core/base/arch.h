// What this CPU is: asked once, answered as data.
#pragma once
#include <string>
#include <utility>
#include <vector>

namespace lowbit {

// Kernel families are built once per row of this list; a higher value is preferred. Those without dot products
// have no tables for avxvnni, vnni, dotprod and i8mm, and use those of base_isa.
enum class Isa : int { scalar = 0, avx2 = 1, avxvnni = 2, avx512 = 3, vnni = 4, neon = 5, dotprod = 6, i8mm = 7 };
constexpr int kIsaCount = 8;

constexpr Isa base_isa(Isa isa) {
  if (isa == Isa::avxvnni) return Isa::avx2;
  if (isa == Isa::vnni) return Isa::avx512;
  return isa > Isa::neon ? Isa::neon : isa;
}

const char* isa_name(Isa isa);

// Every instruction-set extension by name, and whether CPU and operating system both offer it.
const std::vector<std::pair<std::string, bool>>& cpu_features();
bool has_feature(const char* name);
std::string cpu_brand();

// Was it compiled in, and can this CPU run it?
bool isa_available(Isa isa);

// The ISA kernels are dispatched to: the best available one under the cap.
// The cap comes from LOWBIT_MAX_ISA at load time or from set_max_isa; "" lifts it.
Isa active_isa();
const std::string& max_isa();
bool set_max_isa(const std::string& name);  // false: no such name

}  // namespace lowbit
