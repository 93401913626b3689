#include "kernels/groups/x86_zmm.h"

namespace lowbit {
namespace {

struct VnniGroups : ZmmGroups {
  static constexpr const char* name = "vpdpbusd";
  static constexpr int64_t spill(int) { return 0; }

  LOWBIT_INLINE void add(Sum& sum, __m512i part, Quad a) {  // written out, as in kernels/gemm
    asm("vpdpbusd %[a], %[part], %[sum]" : [sum] "+v"(sum) : [part] "v"(part), [a] "v"(a));
  }
  LOWBIT_INLINE Avx512::I32 to_i32(Sum s) { return s; }
};

}  // namespace

extern const GroupRow* const group_rows_vnni;
const GroupRow* const group_rows_vnni = GroupTable<VnniGroups>::rows;
}  // namespace lowbit
