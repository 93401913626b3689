// Scales from each group's own range, and its codes, in one pass over memory.
#pragma once
#include <type_traits>

#include "kernels/quantize/given.h"
#include "kernels/range/generic.h"

namespace lowbit {

// Whether groups of whole blocks have their own kernel.
template <class V, class In, class C>
constexpr bool has_blocks = sizeof(C) == 1 && sizeof(In) <= 4 && requires { typename V::Bounds; };

// How codes are written.
enum class Form { codes, nibbles };

// Parameters of a batch of groups, computed together. `unroll 1` keeps the loops for the vectorizer, which does not see
// them after early unrolling.
template <class V, class T>
struct GroupParams {
  static constexpr int kBatch = 16;
  static constexpr T kLeast = static_cast<T>(0x1p-125), kMost = static_cast<T>(0x1.fffffep+127f / 65536.0f);

  T lo[kBatch] = {}, hi[kBatch] = {};  // in; symmetric: hi is max|x|
  T scale[kBatch], inv[kBatch], low[kBatch], limit[kBatch];
  int32_t zero[kBatch] = {};

  // Groups of a batch: enough to fill the vectors of their parameters, few enough that a batch stays in L1.
  static __attribute__((always_inline)) int64_t batch_of(int64_t size) {
    const int64_t fit = 1024 / size;
    return fit < 1 ? 1 : (fit > kBatch ? kBatch : fit);
  }

  // Sets lo and hi from the BitRange of each group; returns whether there was a NaN.
  template <bool Symmetric>
  __attribute__((always_inline)) bool from_bits(const typename V::I32* most, const typename V::I32* least) {
    int32_t m[kBatch];
    uint32_t l[kBatch];
    V::reduce_rows_max_i32(most, kBatch, m);
    if constexpr (!Symmetric) V::reduce_rows_max_u32(least, kBatch, l);
    uint32_t nan = 0;
#pragma GCC unroll 1
    for (int g = 0; g < kBatch; ++g) {
      hi[g] = bits_to_float(static_cast<uint32_t>(m[g]));
      nan |= m[g] > 0x7f800000;
      if constexpr (!Symmetric) {
        lo[g] = l[g] > 0x80000000u ? bits_to_float(l[g]) : 0.0f;
        nan |= l[g] > 0xff800000u;
      }
    }
    return nan != 0;
  }

  __attribute__((always_inline)) void symmetric(T divisor, T qmax) {
#pragma GCC unroll 1
    for (int g = 0; g < kBatch; ++g) {
      T s = hi[g] / divisor;
      s = s > kLeast ? s : kLeast;
      scale[g] = hi[g] > 0 ? s : T{1};
      limit[g] = qmax * scale[g];
    }
  }
  __attribute__((always_inline)) void asymmetric(T qmin, T qmax) {
#pragma GCC unroll 1
    for (int g = 0; g < kBatch; ++g) {
      const T l = lo[g] < 0 ? lo[g] : T{0}, h = hi[g] > 0 ? hi[g] : T{0};
      T s = (h - l) / (qmax - qmin);
      s = s > kLeast ? s : kLeast;
      s = h > l ? s : T{1};
      T z = h > l ? qmin - l / s : T{0};
      z = z > qmin ? z : qmin;
      z = z < qmax ? z : qmax;
      z = sizeof(T) == 8 ? __builtin_rint(z) : __builtin_rintf(static_cast<float>(z));
      scale[g] = s;
      zero[g] = static_cast<int32_t>(z);
      limit[g] = (qmax - z) * s;
    }
  }
  __attribute__((always_inline)) T greatest() const {
    auto most = V::load(scale);
    for (int g = V::width; g < kBatch; g += V::width) most = V::max_skip_nan(V::load(scale + g), most);
    return V::reduce_max(most);
  }
  __attribute__((always_inline)) void invert() {
#pragma GCC unroll 1
    for (int g = 0; g < kBatch; ++g) {
      const Reciprocal<T> r = reciprocal(scale[g]);
      inv[g] = r.inv, low[g] = r.low;
    }
  }
  // All parameters from lo and hi.
  template <bool Symmetric>
  __attribute__((always_inline)) void derive(const DynamicGroupsArgs& a) {
    if constexpr (Symmetric) {
      symmetric(static_cast<T>(a.divisor), static_cast<T>(a.qmax));
    } else {
      asymmetric(static_cast<T>(a.qmin), static_cast<T>(a.qmax));
    }
    invert();
  }
};

// A batch of groups is quantized while the ranges of the next batch are found, group by group. Loads of new data and
// arithmetic on old data alternate, so that neither waits for the other.
template <class V, class In, class C, bool Symmetric>
void quantize_dynamic_as(const DynamicGroupsArgs& a) {
  using T = compute_t<In>;
  const In* x = static_cast<const In*>(a.x);
  C* q = static_cast<C*>(a.q);
  T* scale = static_cast<T*>(a.scale);
  const int64_t size = a.group, groups = a.n / size, batch = GroupParams<V, T>::batch_of(size);
  constexpr int64_t kAhead = 8192;
  auto flag = V::no_nan();
  bool tail_nan = false;
  GroupParams<V, T> batches[2];
  const auto find_range = [&](int64_t group, GroupParams<V, T>& p, int64_t g) __attribute__((always_inline)) {
    if constexpr (Symmetric) {
      p.hi[g] = Ranger<V, In>::template run_abs<kAhead>(x + group * size, size, &tail_nan);
    } else {
      flag = Ranger<V, In>::template run<kAhead>(x + group * size, size, p.lo + g, p.hi + g, flag, &tail_nan);
    }
  };
  for (int64_t g = 0; g < groups && g < batch; ++g) find_range(g, batches[0], g);
  int turn = 0;
  for (int64_t b = 0; b < groups; b += batch, turn ^= 1) {
    GroupParams<V, T>&p = batches[turn], &next = batches[turn ^ 1];
    const int64_t count = groups - b < batch ? groups - b : batch;
    p.template derive<Symmetric>(a);
    const bool divide = must_divide<C>(p.greatest());
    if (!(p.greatest() <= GroupParams<V, T>::kMost))
      for (int64_t g = 0; g < count; ++g) *a.bad_scale += !(p.scale[g] <= GroupParams<V, T>::kMost);
    std::memcpy(scale + b, p.scale, count * sizeof(T));
    if constexpr (!Symmetric) std::memcpy(a.zero + b, p.zero, count * sizeof(int32_t));
    for (int64_t g = 0; g < count; ++g) {
      if (b + batch + g < groups) find_range(b + batch + g, next, g);
      const Reciprocal<T> r = {p.inv[g], p.low[g]};
      const int32_t z = Symmetric ? 0 : p.zero[g];
      const int64_t at = (b + g) * size;
      if (divide) {
        UniformQuantizer<V, In, C, Quotient::division>(p.scale[g], r, p.limit[g], z, a.qmin).run(x + at, q + at, size);
      } else {
        UniformQuantizer<V, In, C, Quotient::fused>(p.scale[g], r, p.limit[g], z, a.qmin).run(x + at, q + at, size);
      }
    }
  }
  if (V::any(flag) || tail_nan) *a.nan += Ranger<V, In>::count(x, a.n);
}

// memcpy of a few elements. GCC turns memcpy of an unknown small size into a slow string instruction.
template <class T>
LOWBIT_INLINE void copy_few(T* to, const T* from, int64_t count) {
  if (count == 16) {
    std::memcpy(to, from, 16 * sizeof(T));
  } else if (count == 8) {
    std::memcpy(to, from, 8 * sizeof(T));
  } else {
    for (int64_t i = 0; i < count; ++i) {
      to[i] = from[i];
      asm volatile("" ::: "memory");  // keeps the compiler from recognising memcpy
    }
  }
}

// The same for groups of whole blocks, alternating block by block: while one batch is quantized, the parameters of the
// second are derived and the ranges of the third are found. The parameters come from the group's own range, so that no
// float needs clamping.
template <class V, class In, class C, Quotient Kind, bool Clamp>
struct BlockQuantizer {
  using T = compute_t<In>;
  static constexpr int w = V::width;
  static constexpr int64_t kBlock = 4 * w;

  Divisor<V, T, Kind> divisor;
  typename V::Bounds bounds;

  __attribute__((always_inline)) BlockQuantizer(T s, Reciprocal<T> r, int32_t z, int32_t qmin, int32_t qmax)
      : divisor(Divisor<V, T, Kind>::of(s, r)), bounds(z, qmin, qmax) {}

  __attribute__((always_inline)) typename V::I32 steps(const In* p) const {
    return V::round_i32(divisor(V::kept(V::load(p))));
  }

  // q: the codes of the group; i: the first element of the block.
  template <Form Written>
  __attribute__((always_inline)) void block(const In* x, void* q, int64_t i) const {
    x += i;
    const auto a = steps(x), b = steps(x + w), c = steps(x + 2 * w), d = steps(x + 3 * w);
    if constexpr (Written == Form::codes) {
      V::template store_bounded4<Clamp>(static_cast<C*>(q) + i, a, b, c, d, bounds);
    } else {
      uint8_t* to = static_cast<uint8_t*>(q) + i / 2;
      V::template store_nibbles4<Clamp>(C{}, to, a, b, c, d, bounds);
    }
  }
};

// The range of a run of numbers, found on their bits, where a NaN lies beyond the infinities. Symmetric: the largest
// |x|. Else: as signed integers, positive numbers are ordered and above all others; as unsigned integers, negative
// numbers are, the smallest on top. 0 is always in the range.
template <class V, class In, bool Symmetric>
struct BitRange {
  using I32 = typename V::I32;
  I32 most[2] = {V::set_i32(0), V::set_i32(0)}, least[2] = {V::set_i32(0), V::set_i32(0)};

  __attribute__((always_inline)) void note(const In* p, int k) {
    if constexpr (Symmetric) {
      most[k] = V::max(V::magnitude(V::load(p)), most[k]);
    } else {
      const I32 v = V::bits(V::kept(V::load(p)));
      most[k] = V::max(v, most[k]), least[k] = V::max_u32(v, least[k]);
    }
  }
  __attribute__((always_inline)) void note_block(const In* p) {
    constexpr int w = V::width;
    note(p, 0), note(p + w, 1), note(p + 2 * w, 0), note(p + 3 * w, 1);
  }
};

// Size: elements per group where it is known at compile time, else 0.
template <class V, class In, class C, bool Symmetric, bool Clamp, int Size, Form Written>
void quantize_dynamic_blocks(const DynamicGroupsArgs& a) {
  using I32 = typename V::I32;
  using Params = GroupParams<V, float>;
  constexpr int64_t kBlock = 4 * V::width, kAhead = 8192;
  const In* x = static_cast<const In*>(a.x);
  float* scale = static_cast<float*>(a.scale);
  const int64_t size = Size != 0 ? Size : a.group, groups = a.n / size, batch = Params::batch_of(size);
  I32 most[Params::kBatch], least[Params::kBatch];
  for (int g = 0; g < Params::kBatch; ++g) most[g] = least[g] = V::set_i32(0);
  const int32_t qmin = a.qmin, qmax = a.qmax;
  Params params[2];
  bool divide[2] = {}, nan = false;
  const auto note = [&](const BitRange<V, In, Symmetric>& range, int64_t g) __attribute__((always_inline)) {
    most[g] = V::max(range.most[0], range.most[1]);
    if constexpr (!Symmetric) least[g] = V::max_u32(range.least[0], range.least[1]);
  };
  const auto find_ranges = [&](int64_t b) __attribute__((always_inline)) {
    for (int64_t g = 0; g < batch && b + g < groups; ++g) {
      BitRange<V, In, Symmetric> range;
      for (int64_t i = 0; i < size; i += kBlock) range.note_block(x + (b + g) * size + i);
      note(range, g);
    }
  };
  const auto derive = [&](int64_t b, int turn) __attribute__((always_inline)) {
    const int64_t count = groups - b < batch ? groups - b : batch;
    if (count <= 0) return;
    Params& p = params[turn];
    nan |= p.template from_bits<Symmetric>(most, least);
    p.template derive<Symmetric>(a);
    divide[turn] = must_divide<C>(p.greatest());
    if (!(p.greatest() <= Params::kMost))
      for (int64_t g = 0; g < count; ++g) *a.bad_scale += !(p.scale[g] <= Params::kMost);
    copy_few(scale + b, p.scale, count);
    if constexpr (!Symmetric) copy_few(a.zero + b, p.zero, count);
  };
  find_ranges(0);
  derive(0, 0);
  find_ranges(batch);
  int turn = 0;
  for (int64_t b = 0; b < groups; b += batch, turn ^= 1) {
    derive(b + batch, turn ^ 1);
    const Params& p = params[turn];
    const int64_t count = groups - b < batch ? groups - b : batch;
    const auto quantize = [&](auto kind) __attribute__((always_inline)) {
      for (int64_t g = 0; g < count; ++g) {
        const int64_t at = (b + g) * size;
        const In* here = x + at;
        const In* next = b + 2 * batch + g < groups ? here + 2 * batch * size : here;  // the last batch is read twice
        void* to = static_cast<char*>(a.q) + (Written == Form::codes ? at : at / 2);
        const BlockQuantizer<V, In, C, decltype(kind)::value, Clamp> k(p.scale[g], {p.inv[g], p.low[g]},
                                                                       Symmetric ? 0 : p.zero[g], qmin, qmax);
        BitRange<V, In, Symmetric> range;
        for (int64_t i = 0; i < size; i += kBlock) {
          prefetch_ahead<kAhead>(next + i, kBlock * sizeof(In));
          range.note_block(next + i);
          k.template block<Written>(here, to, i);
        }
        note(range, g);
      }
    };
    if (divide[turn]) {
      quantize(std::integral_constant<Quotient, Quotient::division>{});
    } else {
      quantize(std::integral_constant<Quotient, Quotient::fused>{});
    }
  }
  if (nan) *a.nan += Ranger<V, In>::count(x, a.n);
}

template <class V, class In, class C, int Size, Form Written>
void quantize_dynamic_sized(const DynamicGroupsArgs& a) {
  if (a.zero != nullptr) {
    quantize_dynamic_blocks<V, In, C, false, true, Size, Written>(a);
  } else if (needs_no_clamp(a, static_cast<C>(-1) < 0)) {
    quantize_dynamic_blocks<V, In, C, true, false, Size, Written>(a);
  } else {
    quantize_dynamic_blocks<V, In, C, true, true, Size, Written>(a);
  }
}

template <class V, class In, class C, Form Written>
void quantize_dynamic_written(const DynamicGroupsArgs& a) {
  constexpr int kBlock = 4 * V::width;
  a.group == kBlock ? quantize_dynamic_sized<V, In, C, kBlock, Written>(a)
                    : quantize_dynamic_sized<V, In, C, 0, Written>(a);
}

template <class V, class In, class C>
void quantize_dynamic_groups(const DynamicGroupsArgs& a) {
  if constexpr (has_blocks<V, In, C>) {
    if (a.nibbles) return quantize_dynamic_written<V, In, C, Form::nibbles>(a);
    if (a.group % (4 * V::width) == 0) return quantize_dynamic_written<V, In, C, Form::codes>(a);
  }
  a.zero ? quantize_dynamic_as<V, In, C, false>(a) : quantize_dynamic_as<V, In, C, true>(a);
}

}  // namespace lowbit
