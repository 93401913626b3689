#include "kernels/groups/x86_ymm.h"

namespace lowbit {
namespace {

struct AvxVnniGroups : YmmGroups {
  static constexpr const char* name = "vpdpbusd, 256 bits";
  static constexpr int64_t spill(int) { return 0; }

  LOWBIT_INLINE void add(Sum& sum, __m256i part, Quad a) {  // written out, as in kernels/gemm
    asm("%{vex%} vpdpbusd %[a], %[part], %[sum]" : [sum] "+x"(sum) : [part] "x"(part), [a] "x"(a));
  }
  LOWBIT_INLINE Avx2::I32 to_i32(Sum s) { return s; }
};

}  // namespace

extern const GroupRow* const group_rows_avxvnni;
const GroupRow* const group_rows_avxvnni = GroupTable<AvxVnniGroups>::rows;
}  // namespace lowbit
