// The features of this CPU, detected once.
#pragma once
#include <string>
#include <utility>
#include <vector>

namespace lowbit {

// What kernels are compiled for; of those that can be active, a higher one is preferred. A family of kernels has files
// for some of them, and the active ISA uses the best of these (kernels/dispatch.cc).
enum class Isa : int {
  scalar = 0,
  avx2 = 1,
  avxvnni = 2,
  avx512 = 3,
  vnni = 4,
  neon = 5,
  dotprod = 6,
  i8mm = 7,
  vpopcnt = 8,  // this and the next: extensions of AVX-512, used with it where the CPU has them
  vbmi = 9,
};
constexpr int kIsaCount = 8;  // those that can be active

const char* isa_name(Isa isa);

// Every instruction-set extension by name, and whether CPU and operating system both offer it.
const std::vector<std::pair<std::string, bool>>& cpu_features();
bool has_feature(const char* name);
std::string cpu_brand();

// Was it compiled in, and can this CPU run it?
bool isa_available(Isa isa);
// Whether kernels for this extension serve `isa` on this CPU.
bool extends(Isa extension, Isa isa);

// The ISA that kernels are dispatched to: the best available one under the cap. The cap comes from LOWBIT_MAX_ISA at
// load time or from set_max_isa; "" removes it.
Isa active_isa();
const std::string& max_isa();
bool set_max_isa(const std::string& name);  // false: no such name

}  // namespace lowbit
