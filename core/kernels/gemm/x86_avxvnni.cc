// vpdpbusd on 256 bits, for CPUs that have it without AVX-512: eight columns per register.
#include "kernels/gemm/x86.h"
#include "simd/x86_vec256.h"

namespace lowbit {
namespace {

struct AvxVnniDot : X86Bytewise<Avx2> {
  static constexpr const char* name = "vpdpbusd, 256 bits";
  static constexpr bool by_pairs = true;
  static constexpr int wide(int rows) { return rows == 1 ? 4 : 2; }
  static constexpr int chains(int rows) { return rows < 4 ? 2 : 1; }  // twelve of sixteen registers are accumulators

  LOWBIT_INLINE Acc sum(Acc x, Acc y) { return Avx2::add(x, y); }
  LOWBIT_INLINE Acc start(const int32_t* from) { return Avx2::load_i32(from); }
  LOWBIT_INLINE void dot(Acc& acc, Quad a, Cols b) {  // inline assembly, as for 512 bits
    asm("%{vex%} vpdpbusd %[b], %[a], %[acc]" : [acc] "+x"(acc) : [a] "x"(a), [b] "x"(b));
  }
};

}  // namespace

constinit const KernelTable<GemmRow> gemm_rows_avxvnni = GemmRows<AvxVnniDot>::rows;
}  // namespace lowbit
