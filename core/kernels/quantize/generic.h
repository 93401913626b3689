// The rows: the algorithms of given.h and dynamic.h, for every vector width and element type.
#pragma once
#include <type_traits>

#include "kernels/quantize/dynamic.h"
#include "kernels/quantize/given.h"

namespace lowbit {

struct SignBit {};  // tag: the b1 rows

template <class V, class In, class C>
constexpr QuantizeRow quantize_row_of(Element in, Code code) {
  constexpr auto prepare = prepare_columns<V, In>;
  if constexpr (std::is_same_v<C, SignBit>) {
    constexpr QuantizeFn run = quantize_sign<V, In>, columns = quantize_sign_columns<V, In>;
    return {in, code, run, run, columns, nullptr, 0, prepare};
  } else {
    constexpr QuantizeFn uniform = quantize_uniform<V, In, C>, grouped = quantize_grouped<V, In, C>;
    constexpr QuantizeFn columns = quantize_columns<V, In, C>;
    constexpr int64_t nibble_block = has_blocks<V, In, C> ? 4 * V::width : 0;
    return {in, code, uniform, grouped, columns, quantize_dynamic_groups<V, In, C>, nibble_block, prepare};
  }
}

template <class V>
struct QuantizeRows {
  static constexpr QuantizeRow rows[] = {
#define ROW(e, c, In, C) quantize_row_of<V, In, C>(Element::e, Code::c),
#include "kernels/quantize/kernels.inc"
#undef ROW
  };
};

}  // namespace lowbit
