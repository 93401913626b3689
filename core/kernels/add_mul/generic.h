// The exact equation, for every vector width and code type. Shortcuts are in shortcut.h.
#pragma once
#include "kernels/add_mul/add_mul.h"
#include "kernels/add_mul/shortcut.h"
#include "simd/bytes.h"
#include "simd/quotient.h"
#include "simd/vec.h"

namespace lowbit {

template <class V, AddMulOp Op, class A, class B, class C, Quotient Kind>
struct Combiner {
  using F32 = typename V::F32;
  using I32 = typename V::I32;

  Divisor<V, float, Kind> divisor;
  F32 sa, sb, lo, hi;  // lo, hi: clamps x as quantize.h does, which keeps quotients in the proven range
  I32 za, zb;
  typename V::ByteShift shift;

  explicit Combiner(const AddMulArgs& k)
      : divisor(Divisor<V, float, Kind>::of(k.sy, reciprocal(k.sy))),
        sa(V::set(k.sa)),
        sb(V::set(k.sb)),
        lo(V::set(static_cast<float>(k.qmin - k.zy) * k.sy)),
        hi(V::set(static_cast<float>(k.qmax - k.zy) * k.sy)),
        za(V::set_i32(k.za)),
        zb(V::set_i32(k.zb)),
        shift(k.zy, k.qmin) {}

  __attribute__((always_inline)) I32 steps(const A* a, const B* b) const {
    const F32 va = V::mul(V::to_f32(V::sub(V::load_codes(a), za)), sa);
    const F32 vb = V::mul(V::to_f32(V::sub(V::load_codes(b), zb)), sb);
    const F32 v = Op == AddMulOp::add ? V::add(va, vb) : V::mul(va, vb);
    return V::round_i32(divisor(V::limit(v, lo, hi)));
  }

  __attribute__((always_inline)) void block(const A* a, const B* b, C* q) const {
    constexpr int w = V::width;
    V::store_bytes4(q, steps(a, b), steps(a + w, b + w), steps(a + 2 * w, b + 2 * w), steps(a + 3 * w, b + 3 * w),
                    shift);
  }
};

template <class V, AddMulOp Op, class A, class B, class C, Quotient Kind>
void combine_as(const AddMulArgs& k) {
  constexpr int half = 4 * V::width;
  const Combiner<V, Op, A, B, C, Kind> combiner(k);
  for_each_block<2 * half>(static_cast<const uint8_t*>(k.a), static_cast<const uint8_t*>(k.b),
                           static_cast<uint8_t*>(k.q), k.n,
                           [&](const uint8_t* a, const uint8_t* b, uint8_t* q) __attribute__((always_inline)) {
                             for (int i = 0; i < 2 * half; i += half)
                               combiner.block(reinterpret_cast<const A*>(a + i), reinterpret_cast<const B*>(b + i),
                                              reinterpret_cast<C*>(q + i));
                           });
}

template <class V, AddMulOp Op, class A, class B, class C>
void combine_typed(const AddMulArgs& k) {
  k.sy > kMaxQuotientScale ? combine_as<V, Op, A, B, C, Quotient::division>(k)
                           : combine_as<V, Op, A, B, C, Quotient::fused>(k);
}

template <class V, AddMulOp Op, class C>
void combine_exact(const AddMulArgs& k) {
  if (k.a_signed) {
    k.b_signed ? combine_typed<V, Op, int8_t, int8_t, C>(k) : combine_typed<V, Op, int8_t, uint8_t, C>(k);
  } else {
    k.b_signed ? combine_typed<V, Op, uint8_t, int8_t, C>(k) : combine_typed<V, Op, uint8_t, uint8_t, C>(k);
  }
}

template <class V, class B>
struct AddMulRows {
  template <AddMulOp Op, class C>
  static constexpr AddMulFn shortcut() {
    if constexpr (B::has_words) return combine_shortcut<V, B, Op, C>;
    return nullptr;
  }
  static constexpr AddMulRow rows[] = {
#define ROW(op, c, C)                                                                     \
  {AddMulOp::op, Code::c, combine_exact<V, AddMulOp::op, C>, shortcut<AddMulOp::op, C>(), \
   AddMulOp::op == AddMulOp::add && B::has_tables},
#include "kernels/add_mul/kernels.inc"
#undef ROW
  };
};

}  // namespace lowbit
