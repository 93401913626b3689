// One row per element type, for every vector width.
#pragma once
#include <type_traits>
#include <utility>

#include "kernels/fake_quant/masked.h"

namespace lowbit {

template <class V, class In, class Ops>
struct FakeQuantEntry;
template <class V, class In, int... Op>
struct FakeQuantEntry<V, In, std::integer_sequence<int, Op...>> {
  static constexpr FakeQuantRow row(Element e) {
    return {
        e,
        {fake_grouped<V, In, static_cast<FakeOp>(Op)>...},
        {fake_columns<V, In, static_cast<FakeOp>(Op)>...},
        learned_run<V, In>,
        learned_columns<V, In>,
        fake_masked<V, In>,
        keep_where<
            std::conditional_t<sizeof(In) == 2, uint16_t, std::conditional_t<sizeof(In) == 4, uint32_t, uint64_t>>>};
  }
};

template <class V>
struct FakeQuantRows {
  static constexpr FakeQuantRow rows[] = {
#define ROW(e, In) FakeQuantEntry<V, In, std::make_integer_sequence<int, kFakeOps>>::row(Element::e),
#include "kernels/fake_quant/kernels.inc"
#undef ROW
  };
};

}  // namespace lowbit
