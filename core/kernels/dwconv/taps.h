// Operations on taps, in addition to simd/vec.h. Taps<V> works on a block of channels.
//
//   kBlock, kVectors                channels of a block, and I32 vectors that hold its accumulators
//   Codes widen(p)                  kBlock s8 or u8 codes as int16
//   Pair pair(a, b)                 the codes of two taps, brought together
//   add(acc, v, pair, w)            acc + a * w(a) + b * w(b) for the channels of vector v; never saturates
//   add_second(acc, v, pair, w)     the same, the weights of a being 0
//   channel(v, lane)                which channel of the block this lane stands for
//   place(v, lane, second)          where its weight is among the 2 * kBlock of a pair
//   store(p, acc)                   kBlock int32, in order
//   store_codes2(p, q, a, b, k, flip)  bytes max(i + zero, qmin) ^ flip of two pixels; k is V::ByteShift, for u8
#pragma once
#include "simd/vec.h"

namespace lowbit {

template <class V>
struct Taps;

}  // namespace lowbit
