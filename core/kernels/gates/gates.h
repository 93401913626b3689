// The gates of a recurrent layer, and the state that they make, in float32. `x` is what the input adds to the gates,
// `g` the product of the state, both [rows, gates, hidden]; s is the logistic function.
//   lstm  (i, f, n, o)  c = s(f) * c + s(i) * tanh(n),  h = s(o) * tanh(c)     of x + g
//   gru   (r, z, n)     h = m + s(z) * (h - m),  m = tanh(x_n + s(r) * g_n)    s of x + g
// Additions and products are rounded one by one, so that every ISA gives the same bits. tanh is within 4e-7.
#pragma once
#include "base/types.h"
#include "kernels/families.h"

namespace lowbit {

struct GatesArgs {
  const float* x;
  const float* g;
  float* h;    // [rows, hidden]
  float* c;    // the same; lstm only
  float* out;  // a copy of h
  int64_t rows, hidden;
};

using GatesFn = void (*)(const GatesArgs&);

struct GatesRow {
  GatesFn lstm;
  GatesFn gru;
};

const GatesRow& gates_row(Isa isa);

}  // namespace lowbit
