// The algorithms once, for every vector width. The last lanes of a row are computed by the scalar operations.
#pragma once
#include "kernels/gates/gates.h"
#include "simd/scalar.h"

namespace lowbit {

// tanh(x) = x / (1 + x^2 / (3 + x^2 / (5 + ...))), Lambert's continued fraction, as a quotient of polynomials in x^2:
// twelve levels are within 1e-7 up to 8, where tanh is 1 - 2e-7.
constexpr float kTanhEnd = 8.0f;
constexpr float kTanhOver[] = {1.0f, 0.144927531f, 0.00496894401f, 5.8116304e-05f, 2.37403214e-07f, 2.46652671e-10f};
constexpr float kTanhUnder[] = {
    1.0f, 0.478260875f, 0.0310559012f, 0.000610221177f, 4.27325767e-06f, 9.49612833e-09f, 3.16221398e-12f};

template <class V, size_t N>
LOWBIT_INLINE typename V::F32 polynomial(typename V::F32 x, const float (&coefficients)[N]) {
  typename V::F32 sum = V::set(coefficients[N - 1]);
  for (size_t i = N - 1; i-- > 0;) sum = V::add(V::mul(sum, x), V::set(coefficients[i]));
  return sum;
}

template <class V>
LOWBIT_INLINE typename V::F32 tanh_of(typename V::F32 x) {
  x = V::clamp(x, V::set(-kTanhEnd), V::set(kTanhEnd));
  const typename V::F32 square = V::mul(x, x);
  return V::divide(V::mul(x, polynomial<V>(square, kTanhOver)), polynomial<V>(square, kTanhUnder));
}

template <class V>
LOWBIT_INLINE typename V::F32 logistic(typename V::F32 x) {
  const typename V::F32 half = V::set(0.5f);
  return V::add(half, V::mul(half, tanh_of<V>(V::mul(half, x))));
}

struct Lstm {
  static constexpr int64_t gates = 4;

  template <class V>
  LOWBIT_INLINE void step(const GatesArgs& k, const float* x, const float* g, int64_t at) {
    const int64_t n = k.hidden;
    const auto sum = [&](int64_t gate) __attribute__((always_inline)) {
      return V::add(V::load(g + gate * n), V::load(x + gate * n));
    };
    const auto kept = V::mul(logistic<V>(sum(1)), V::load(k.c + at));
    const auto cell = V::add(kept, V::mul(logistic<V>(sum(0)), tanh_of<V>(sum(2))));
    const auto state = V::mul(logistic<V>(sum(3)), tanh_of<V>(cell));
    V::store(k.c + at, cell);
    V::store(k.h + at, state);
    V::store(k.out + at, state);
  }
};

struct Gru {
  static constexpr int64_t gates = 3;

  template <class V>
  LOWBIT_INLINE void step(const GatesArgs& k, const float* x, const float* g, int64_t at) {
    const int64_t n = k.hidden;
    const auto sum = [&](int64_t gate) __attribute__((always_inline)) {
      return V::add(V::load(g + gate * n), V::load(x + gate * n));
    };
    const auto reset = logistic<V>(sum(0));
    const auto made = tanh_of<V>(V::add(V::load(x + 2 * n), V::mul(reset, V::load(g + 2 * n))));
    const auto state = V::add(made, V::mul(logistic<V>(sum(1)), V::sub(V::load(k.h + at), made)));
    V::store(k.h + at, state);
    V::store(k.out + at, state);
  }
};

template <class V, class Cell>
void gates_step(const GatesArgs& k) {
  for (int64_t r = 0; r < k.rows; ++r) {
    const float *x = k.x + r * Cell::gates * k.hidden, *g = k.g + r * Cell::gates * k.hidden;
    const int64_t first = r * k.hidden;
    int64_t i = 0;
    for (; i + V::width <= k.hidden; i += V::width) Cell::template step<V>(k, x + i, g + i, first + i);
    for (; i < k.hidden; ++i) Cell::template step<Scalar>(k, x + i, g + i, first + i);
  }
}

template <class V>
struct GatesRows {
  static constexpr GatesRow rows[] = {{gates_step<V, Lstm>, gates_step<V, Gru>}};
};

}  // namespace lowbit
