// vpdpbusd: four products of a u8 row and s8 columns added to 32 bits, sixteen columns per register.
#include "kernels/gemm/x86.h"
#include "simd/x86_vec512.h"

namespace lowbit {
namespace {

struct VnniDot : X86Bytewise<Avx512> {
  static constexpr const char* name = "vpdpbusd";
  static constexpr bool by_pairs = true;
  static constexpr int wide(int) { return 4; }
  static constexpr int chains(int) { return 2; }

  LOWBIT_INLINE Acc sum(Acc x, Acc y) { return Avx512::add(x, y); }
  LOWBIT_INLINE Acc start(const int32_t* from) { return Avx512::load_i32(from); }
  // Inline assembly: with the intrinsic, GCC spills half of the accumulators.
  LOWBIT_INLINE void dot(Acc& acc, Quad a, Cols b) {
    asm("vpdpbusd %[b], %[a], %[acc]" : [acc] "+v"(acc) : [a] "v"(a), [b] "v"(b));
  }
};

}  // namespace

constinit const KernelTable<GemmRow> gemm_rows_vnni = GemmRows<VnniDot>::rows;
}  // namespace lowbit
