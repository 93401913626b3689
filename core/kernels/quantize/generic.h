// The algorithm once, for every vector width and element type.
#pragma once
#include <type_traits>

#include "kernels/quantize/quantize.h"
#include "kernels/range/generic.h"
#include "simd/quotient.h"
#include "simd/vec.h"

namespace lowbit {

struct SignBit {};  // tag: the b1 rows

// Whether V loads four vectors of this element at once, in the order its packing undoes.
template <class V, class In>
constexpr bool has_load4 = requires(const In* p) { V::load4(p); };

// Sixteen-bit codes exceed what is proven.
template <class C, class T>
LOWBIT_INLINE bool must_divide(T s) {
  return sizeof(C) != 1 || s > static_cast<T>(kMaxQuotientScale);
}

template <class V, class In, class C, Quotient Kind>
struct UniformQuantizer {
  using T = compute_t<In>;
  using F = decltype(V::set(T{}));

  Divisor<V, T, Kind> divisor;
  F lo, hi;
  typename V::I32 zero, least;  // least: qmin - z
  typename V::ByteShift shift;

  // limit: (qmax - z) * s
  __attribute__((always_inline)) UniformQuantizer(T s, Reciprocal<T> r, T limit, int32_t z, int32_t qmin)
      : divisor(Divisor<V, T, Kind>::of(s, r)),
        lo(V::set(static_cast<T>(qmin - z) * s)),
        hi(V::set(limit)),
        zero(V::set_i32(z)),
        least(V::set_i32(qmin - z)),
        shift(z, qmin) {}

  // rne(x / s), not above qmax - z, not yet clamped below.
  __attribute__((always_inline)) typename V::I32 steps(F x) const { return V::round_i32(divisor(V::limit(x, lo, hi))); }
  __attribute__((always_inline)) typename V::I32 steps(const In* p) const { return steps(V::load(p)); }
  __attribute__((always_inline)) typename V::I32 codes(const In* p) const {
    return V::add(V::max(steps(p), least), zero);
  }

  template <bool Stream>
  __attribute__((always_inline)) void block(const In* x, C* q) const {
    constexpr int w = V::width;
    if constexpr (sizeof(C) == 1 && has_load4<V, In>) {
      const auto v = V::load4(x);
      V::template store_bytes4<Stream, true>(q, steps(v.a), steps(v.b), steps(v.c), steps(v.d), shift);
    } else if constexpr (sizeof(C) == 1) {
      V::template store_bytes4<Stream>(q, steps(x), steps(x + w), steps(x + 2 * w), steps(x + 3 * w), shift);
    } else {
      V::template store_codes4<Stream>(q, codes(x), codes(x + w), codes(x + 2 * w), codes(x + 3 * w));
    }
  }

  __attribute__((always_inline)) void run(const In* x, C* q, int64_t n) const {
    constexpr int w = V::width;
    int64_t i = 0;
    for (; i + 4 * w <= n; i += 4 * w) block<false>(x + i, q + i);
    for (; i + w <= n; i += w) V::store_codes(q + i, codes(x + i));
    if (w == 1 || i >= n) return;
    if (n >= w) {  // the last vector overlaps what is already done
      V::store_codes(q + n - w, codes(x + n - w));
    } else {
      In in[w] = {};
      C out[w];
      std::memcpy(in, x + i, (n - i) * sizeof(In));
      V::store_codes(out, codes(in));
      std::memcpy(q + i, out, (n - i) * sizeof(C));
    }
  }

  void run_streaming(const In* x, C* q, int64_t n) const {
    constexpr int64_t step = 4 * V::width;
    constexpr uintptr_t align = 64;
    int64_t head = static_cast<int64_t>((-reinterpret_cast<uintptr_t>(q) & (align - 1)) / sizeof(C));
    if (head > n) head = n;
    run(x, q, head);
    int64_t i = head;
    for (; i + step <= n; i += step) block<true>(x + i, q + i);
    run(x + i, q + i, n - i);
  }
};

template <class V, class In, class C, Quotient Kind>
void quantize_uniform_as(const QuantizeArgs& a, compute_t<In> s, Reciprocal<compute_t<In>> r, int32_t z) {
  const UniformQuantizer<V, In, C, Kind> k(s, r, static_cast<compute_t<In>>(a.qmax - z) * s, z, a.qmin);
  const In* x = static_cast<const In*>(a.x);
  C* q = static_cast<C*>(a.q);
  if (a.stream) {
    k.run_streaming(x, q, a.n);
  } else {
    k.run(x, q, a.n);
  }
}

template <class V, class In, class C>
void quantize_uniform(const QuantizeArgs& a) {
  const auto s = *static_cast<const compute_t<In>*>(a.scale);
  const int32_t z = a.zero ? *a.zero : 0;
  if (must_divide<C>(s)) return quantize_uniform_as<V, In, C, Quotient::division>(a, s, reciprocal(s), z);
  if constexpr (sizeof(C) == 1 && kDropped<In> != 0 && V::has_fma) {
    const int reach = a.qmax - z > z - a.qmin ? a.qmax - z : z - a.qmin;
    const float inv = product_inverse<In>(s, reach, a.n);
    if (inv != 0) return quantize_uniform_as<V, In, C, Quotient::product>(a, s, {inv, 0}, z);
  }
  quantize_uniform_as<V, In, C, Quotient::fused>(a, s, reciprocal(s), z);
}

template <class V, class In, class C, Quotient Kind, bool Zero>
void quantize_grouped_as(const QuantizeArgs& a, int64_t groups) {
  using T = compute_t<In>;
  // What depends on the scale alone is computed for many groups at once, off the critical path of each.
  constexpr int64_t kBatch = 64;
  const T* scale = static_cast<const T*>(a.scale);
  const In* x = static_cast<const In*>(a.x);
  C* q = static_cast<C*>(a.q);
  for (int64_t b = 0; b < groups; b += kBatch) {
    T inv[kBatch], low[kBatch], limit[kBatch];
    const int64_t m = groups - b < kBatch ? groups - b : kBatch;
    for (int64_t g = 0; g < m; ++g) {
      const Reciprocal<T> r = reciprocal(scale[b + g]);
      inv[g] = r.inv, low[g] = r.low;
      limit[g] = static_cast<T>(a.qmax - (Zero ? a.zero[b + g] : 0)) * scale[b + g];
    }
    for (int64_t g = 0; g < m; ++g, x += a.group, q += a.group) {
      const int32_t z = Zero ? a.zero[b + g] : 0;
      UniformQuantizer<V, In, C, Kind>(scale[b + g], {inv[g], low[g]}, limit[g], z, a.qmin).run(x, q, a.group);
    }
  }
}

template <class V, class In, class C>
void quantize_grouped(const QuantizeArgs& a) {
  const auto* scale = static_cast<const compute_t<In>*>(a.scale);
  const int64_t groups = a.group ? a.n / a.group : 0;
  bool divide = false;
  for (int64_t g = 0; g < groups; ++g) divide |= must_divide<C>(scale[g]);
  if (divide) {
    a.zero ? quantize_grouped_as<V, In, C, Quotient::division, true>(a, groups)
           : quantize_grouped_as<V, In, C, Quotient::division, false>(a, groups);
  } else {
    a.zero ? quantize_grouped_as<V, In, C, Quotient::fused, true>(a, groups)
           : quantize_grouped_as<V, In, C, Quotient::fused, false>(a, groups);
  }
}

// One scale an element. Zero: whether there are zero points to load.
template <class V, class In, class C, Quotient Kind, bool Zero>
struct VaryingQuantizer {
  using T = compute_t<In>;
  using I32 = typename V::I32;

  const T *scale, *inverse, *low, *limit;
  const int32_t* zero;
  I32 qmin;
  typename V::ByteShift shift;

  LOWBIT_INLINE auto to_compute(I32 i) {
    if constexpr (sizeof(T) == 8) {
      return V::to_f64(i);
    } else {
      return V::to_f32(i);
    }
  }
  __attribute__((always_inline)) I32 steps(const In* x, int64_t i) const {
    const auto hi = V::load(limit + i);
    auto lo = hi;
    if constexpr (V::limit_needs_lo) {
      const I32 least = Zero ? V::sub(qmin, V::load_i32(zero + i)) : qmin;
      lo = V::mul(to_compute(least), V::load(scale + i));
    }
    const auto divisor = Divisor<V, T, Kind>::load(scale + i, inverse + i, low + i);
    return V::round_i32(divisor(V::limit(V::load(x + i), lo, hi)));
  }
  __attribute__((always_inline)) I32 codes(const In* x, int64_t i) const {
    if constexpr (Zero) {
      const I32 z = V::load_i32(zero + i);
      return V::add(V::max(steps(x, i), V::sub(qmin, z)), z);
    } else {
      return V::max(steps(x, i), qmin);
    }
  }

  void run(const In* x, C* q, int64_t n) const {
    constexpr int w = V::width;
    int64_t i = 0;
    for (; i + 4 * w <= n; i += 4 * w) {
      if constexpr (!Zero && sizeof(C) == 1) {
        V::template store_bytes4<false>(q + i, steps(x, i), steps(x, i + w), steps(x, i + 2 * w), steps(x, i + 3 * w),
                                        shift);
      } else {
        V::template store_codes4<false>(q + i, codes(x, i), codes(x, i + w), codes(x, i + 2 * w), codes(x, i + 3 * w));
      }
    }
    for (; i + w <= n; i += w) V::store_codes(q + i, codes(x, i));
    if (w == 1 || i >= n) return;
    if (n >= w) {
      V::store_codes(q + n - w, codes(x, n - w));
    } else {
      short_run(x, q, n);
    }
  }

  // Fewer than a vector: in padded copies.
  void short_run(const In* x, C* q, int64_t n) const {
    constexpr int w = V::width;
    In in[w] = {};
    T s[w], inv[w], lo[w], hi[w];
    int32_t z[w] = {};
    C out[w];
    for (int k = 0; k < w; ++k) {
      const int64_t at = k < n ? k : 0;
      s[k] = scale[at], inv[k] = inverse[at], lo[k] = low[at], hi[k] = limit[at];
      if (Zero) z[k] = zero[at];
    }
    std::memcpy(in, x, n * sizeof(In));
    V::store_codes(out, VaryingQuantizer{s, inv, lo, hi, z, qmin, shift}.codes(in, 0));
    std::memcpy(q, out, n * sizeof(C));
  }
};

template <class V, class In, class C, Quotient Kind, bool Zero>
void quantize_varying_as(const QuantizeArgs& a) {
  using T = compute_t<In>;
  if (a.n == 0) return;
  const VaryingQuantizer<V, In, C, Kind, Zero> k{static_cast<const T*>(a.scale),
                                                 static_cast<const T*>(a.inverse),
                                                 static_cast<const T*>(a.low),
                                                 static_cast<const T*>(a.limit),
                                                 a.zero,
                                                 V::set_i32(a.qmin),
                                                 typename V::ByteShift(0, a.qmin)};
  k.run(static_cast<const In*>(a.x), static_cast<C*>(a.q), a.n);
}

template <class V, class In, class C>
void quantize_varying(const QuantizeArgs& a) {
  if (a.divide || sizeof(C) != 1) {
    a.zero ? quantize_varying_as<V, In, C, Quotient::division, true>(a)
           : quantize_varying_as<V, In, C, Quotient::division, false>(a);
  } else {
    a.zero ? quantize_varying_as<V, In, C, Quotient::fused, true>(a)
           : quantize_varying_as<V, In, C, Quotient::fused, false>(a);
  }
}

template <class V, class In>
bool prepare_varying(const QuantizeArgs& a, void* inverse, void* low, void* limit) {
  using T = compute_t<In>;
  const T* scale = static_cast<const T*>(a.scale);
  T *inv = static_cast<T*>(inverse), *lo = static_cast<T*>(low), *hi = static_cast<T*>(limit);
  bool divide = false;
  for (int64_t i = 0; i < a.n; ++i) {
    const Reciprocal<T> r = reciprocal(scale[i]);
    inv[i] = r.inv, lo[i] = r.low;
    divide |= scale[i] > static_cast<T>(kMaxQuotientScale);
  }
  if (a.zero) {
    for (int64_t i = 0; i < a.n; ++i) hi[i] = static_cast<T>(a.qmax - a.zero[i]) * scale[i];
  } else {
    for (int64_t i = 0; i < a.n; ++i) hi[i] = static_cast<T>(a.qmax) * scale[i];
  }
  return divide;
}

template <class V, class In>
void quantize_sign(const QuantizeArgs& a) {
  constexpr int w = V::width;
  const In* x = static_cast<const In*>(a.x);
  uint8_t* q = static_cast<uint8_t*>(a.q);
  const auto bits = [&](int64_t i) __attribute__((always_inline)) { return V::positive(V::load(x + i)); };
  int64_t i = 0;
  for (; i + 4 * w <= a.n; i += 4 * w)
    V::template store_codes4<false>(q + i, bits(i), bits(i + w), bits(i + 2 * w), bits(i + 3 * w));
  for (; i < a.n; ++i) q[i] = widen(x[i]) > 0;
}

// Whether groups of whole blocks have a path of their own.
template <class V, class In, class C>
constexpr bool has_blocks = sizeof(C) == 1 && sizeof(In) <= 4 && requires { typename V::Bounds; };

// How it writes codes.
enum class Form { codes, nibbles, streamed_nibbles };

// Parameters of a batch of groups, computed side by side. The loops are left whole for the vectorizer, which an
// early unrolling would hide them from.
template <class V, class T>
struct GroupParams {
  static constexpr int kBatch = 16;
  static constexpr T kLeast = static_cast<T>(0x1p-125), kMost = static_cast<T>(0x1.fffffep+127f / 65536.0f);

  T lo[kBatch] = {}, hi[kBatch] = {};  // in; symmetric: hi is max|x|
  T scale[kBatch], inv[kBatch], low[kBatch], limit[kBatch];
  int32_t zero[kBatch] = {};

  // lo and hi from the BitRange of each group; whether there was a NaN.
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
};

// A batch of groups is quantized while the next one's ranges are found, group by group: reading new data and
// computing on old data take turns, so that neither memory nor arithmetic waits for the other.
template <class V, class In, class C, bool Symmetric>
void quantize_dynamic_as(const DynamicGroupsArgs& a) {
  using T = compute_t<In>;
  const In* x = static_cast<const In*>(a.x);
  C* q = static_cast<C*>(a.q);
  T* scale = static_cast<T*>(a.scale);
  const int64_t size = a.group, groups = a.n / size;
  constexpr int64_t kAhead = 8192;
  // Enough groups to fill the vectors of their parameters, few enough that a batch is soon done.
  int64_t batch = 1024 / size;
  batch = batch < 1 ? 1 : (batch > GroupParams<V, T>::kBatch ? GroupParams<V, T>::kBatch : batch);
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
    if constexpr (Symmetric) {
      p.symmetric(static_cast<T>(a.divisor), static_cast<T>(a.qmax));
    } else {
      p.asymmetric(static_cast<T>(a.qmin), static_cast<T>(a.qmax));
    }
    p.invert();
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

// What memcpy does, which of an unknown few bytes makes a slow string instruction.
template <class T>
LOWBIT_INLINE void copy_few(T* to, const T* from, int64_t count) {
  if (count == 16) {
    std::memcpy(to, from, 16 * sizeof(T));
  } else if (count == 8) {
    std::memcpy(to, from, 8 * sizeof(T));
  } else {
    for (int64_t i = 0; i < count; ++i) {
      to[i] = from[i];
      asm volatile("" ::: "memory");  // still a loop, whatever the compiler recognises
    }
  }
}

// The same for groups of whole blocks, with reading and computing taking turns block by block: while one batch is
// quantized, the parameters of the second are derived and the ranges of the third are found. The parameters come
// from a group's own range: nothing is far outside, so that no float needs clamping.
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

  // q: where the codes of the group begin; i: the block's first element.
  template <Form Written>
  __attribute__((always_inline)) void block(const In* x, void* q, int64_t i) const {
    x += i;
    const auto a = steps(x), b = steps(x + w), c = steps(x + 2 * w), d = steps(x + 3 * w);
    if constexpr (Written == Form::codes) {
      V::template store_bounded4<Clamp>(static_cast<C*>(q) + i, a, b, c, d, bounds);
    } else {
      uint8_t* to = static_cast<uint8_t*>(q) + i / 2;
      V::template store_nibbles4<Clamp, Written == Form::streamed_nibbles>(C{}, to, a, b, c, d, bounds);
    }
  }
};

// The ends of a run of numbers as integers, where a NaN lies beyond the infinities. symmetric: the largest |x|.
// Else, as signed integers positive numbers are ordered and above all others; as unsigned ones negative numbers
// are, the least on top. 0 is always within.
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

template <class V, class In, class C, bool Symmetric, bool Clamp, int Size, Form Written>
void quantize_dynamic_blocks(const DynamicGroupsArgs& a) {
  using I32 = typename V::I32;
  using Params = GroupParams<V, float>;
  constexpr int64_t kBlock = 4 * V::width, kAhead = 8192;
  const In* x = static_cast<const In*>(a.x);
  float* scale = static_cast<float*>(a.scale);
  const int64_t size = Size != 0 ? Size : a.group, groups = a.n / size;
  // Enough groups to fill the vectors of their parameters, few enough that a batch is soon done.
  int64_t batch = 1024 / size;
  batch = batch < 1 ? 1 : (batch > Params::kBatch ? Params::kBatch : batch);
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
    if constexpr (Symmetric) {
      p.symmetric(static_cast<float>(a.divisor), static_cast<float>(a.qmax));
    } else {
      p.asymmetric(static_cast<float>(a.qmin), static_cast<float>(a.qmax));
    }
    p.invert();
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
        const In* next = b + 2 * batch + g < groups ? here + 2 * batch * size : here;  // the last: looked at twice
        void* to = static_cast<char*>(a.q) + (Written == Form::codes ? at : at / 2);
        const BlockQuantizer<V, In, C, decltype(kind)::value, Clamp> k(p.scale[g], {p.inv[g], p.low[g]},
                                                                       Symmetric ? 0 : p.zero[g], qmin, qmax);
        BitRange<V, In, Symmetric> range;
        for (int64_t i = 0; i < size; i += kBlock) {
          for (int64_t line = 0; line < kBlock * static_cast<int64_t>(sizeof(In)); line += 64)
            __builtin_prefetch(reinterpret_cast<const char*>(next + i) + kAhead + line);
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
    if (a.nibbles && a.stream) return quantize_dynamic_written<V, In, C, Form::streamed_nibbles>(a);
    if (a.nibbles) return quantize_dynamic_written<V, In, C, Form::nibbles>(a);
    if (a.group % (4 * V::width) == 0) return quantize_dynamic_written<V, In, C, Form::codes>(a);
  }
  a.zero ? quantize_dynamic_as<V, In, C, false>(a) : quantize_dynamic_as<V, In, C, true>(a);
}

template <class V, class In, class C>
struct QuantizeEntry {
  static constexpr QuantizeFn uniform = quantize_uniform<V, In, C>;
  static constexpr QuantizeFn grouped = quantize_grouped<V, In, C>;
  static constexpr QuantizeFn varying = quantize_varying<V, In, C>;
  static constexpr DynamicGroupsFn dynamic = quantize_dynamic_groups<V, In, C>;
  static constexpr int64_t nibble_block = has_blocks<V, In, C> ? 4 * V::width : 0;
};
template <class V, class In>
struct QuantizeEntry<V, In, SignBit> {
  static constexpr QuantizeFn uniform = quantize_sign<V, In>;
  static constexpr QuantizeFn grouped = quantize_sign<V, In>;
  static constexpr QuantizeFn varying = quantize_sign<V, In>;
  static constexpr DynamicGroupsFn dynamic = nullptr;
  static constexpr int64_t nibble_block = 0;
};

template <class V>
struct QuantizeRows {
  static constexpr QuantizeRow rows[kQuantizeRows] = {
#define ROW(e, c, In, C)                  \
  {Element::e,                            \
   Code::c,                               \
   QuantizeEntry<V, In, C>::uniform,      \
   QuantizeEntry<V, In, C>::grouped,      \
   QuantizeEntry<V, In, C>::varying,      \
   QuantizeEntry<V, In, C>::dynamic,      \
   QuantizeEntry<V, In, C>::nibble_block, \
   prepare_varying<V, In>},
#include "kernels/quantize/kernels.inc"
#undef ROW
  };
};

}  // namespace lowbit
