// The rows: the algorithms of given.h and dynamic.h, for every vector width and element type.
#pragma once
#include "kernels/quantize/dynamic.h"
#include "kernels/quantize/given.h"

namespace lowbit {

struct SignBit {};  // tag: the b1 rows

template <class V, class In, class C>
struct QuantizeEntry {
  static constexpr QuantizeFn uniform = quantize_uniform<V, In, C>;
  static constexpr QuantizeFn grouped = quantize_grouped<V, In, C>;
  static constexpr QuantizeFn columns = quantize_columns<V, In, C>;
  static constexpr DynamicGroupsFn dynamic = quantize_dynamic_groups<V, In, C>;
  static constexpr int64_t nibble_block = has_blocks<V, In, C> ? 4 * V::width : 0;
};
template <class V, class In>
struct QuantizeEntry<V, In, SignBit> {
  static constexpr QuantizeFn uniform = quantize_sign<V, In>;
  static constexpr QuantizeFn grouped = quantize_sign<V, In>;
  static constexpr QuantizeFn columns = quantize_sign_columns<V, In>;
  static constexpr DynamicGroupsFn dynamic = nullptr;
  static constexpr int64_t nibble_block = 0;
};

template <class V>
struct QuantizeRows {
  static constexpr QuantizeRow rows[] = {
#define ROW(e, c, In, C)                  \
  {Element::e,                            \
   Code::c,                               \
   QuantizeEntry<V, In, C>::uniform,      \
   QuantizeEntry<V, In, C>::grouped,      \
   QuantizeEntry<V, In, C>::columns,      \
   QuantizeEntry<V, In, C>::dynamic,      \
   QuantizeEntry<V, In, C>::nibble_block, \
   prepare_columns<V, In>},
#include "kernels/quantize/kernels.inc"
#undef ROW
  };
};

}  // namespace lowbit
