#include <type_traits>

#include "kernels/fake_quant/masked.h"
#include "simd/isa.h"

namespace lowbit {

template <class In>
using word_t = std::conditional_t<sizeof(In) == 2, uint16_t, std::conditional_t<sizeof(In) == 4, uint32_t, uint64_t>>;

template <class V>
struct FakeQuantRows {
  static constexpr FakeQuantRow rows[] = {
#define EACH_OP(kernel, In)                                                                                     \
  {kernel<V, In, FakeOp::fake>, kernel<V, In, FakeOp::fake_backward>, kernel<V, In, FakeOp::quantize_backward>, \
   kernel<V, In, FakeOp::scaled>}
#define ROW(e, In)               \
  {                              \
      Element::e,                \
      EACH_OP(fake_grouped, In), \
      EACH_OP(fake_columns, In), \
      learned_run<V, In>,        \
      learned_columns<V, In>,    \
      fake_masked<V, In>,        \
      keep_where<word_t<In>>},
#include "kernels/fake_quant/kernels.inc"
#undef ROW
#undef EACH_OP
  };
};

constinit const KernelTable<FakeQuantRow> LOWBIT_ROWS(fake_quant) = FakeQuantRows<Vector>::rows;
}  // namespace lowbit
