// Steps of a Cholesky factorization A = L L^T in float64. Each element of L is computed by subtracting the products
// l_ik l_jk in the order of k, each rounded, and one division or root: the same bits on every ISA and for any blocking.
#pragma once
#include "base/types.h"
#include "kernels/families.h"

namespace lowbit {

constexpr int64_t kCholeskyBlock = 32;  // columns of a panel
constexpr int64_t kCholeskyLanes = 16;  // rows that are solved at once, and columns that are updated at once

struct CholeskyPanelArgs {
  const double* diagonal;  // [block, block], the factor of the panel's first rows
  double* rows;            // the first of 16 rows of the panel: solved in place
  int64_t stride;          // in doubles
  int64_t count;           // rows, up to 16
  int64_t columns;         // of the panel, up to kCholeskyBlock
  double* turned;          // [columns, turned_stride]: the same, transposed
  int64_t turned_stride;
};

struct CholeskyUpdateArgs {
  double* a;             // one row of what is below and right of the panel
  const double* row;     // of the panel, the same row: [columns]
  const double* turned;  // [columns, turned_stride]: the panel transposed, from the first updated column on
  int64_t turned_stride;
  int64_t columns;  // of the panel
  int64_t count;    // updated elements of the row, which are readable and writable up to a multiple of 16
};

struct CholeskyRow {
  void (*panel)(const CholeskyPanelArgs&);
  void (*update)(const CholeskyUpdateArgs&);
};

const CholeskyRow& cholesky_row(Isa isa);

}  // namespace lowbit
