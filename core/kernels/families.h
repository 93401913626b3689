// Declares the tables of all kernel families, from families.inc.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "base/arch.h"

namespace lowbit {

template <class Row>
using KernelTable = std::span<const Row>;

// <family>_rows(isa): the rows for an instruction set. Without `extensions`, those that a CPU without VPOPCNTDQ and
// VBMI would use. <family>_rows_<isa>: a table as its file defines it.
#define FAMILY(family, Row, isas, keys, computes)                                                                      \
  struct Row;                                                                                                          \
  extern const KernelTable<Row> family##_rows_scalar, family##_rows_avx2, family##_rows_avxvnni, family##_rows_avx512, \
      family##_rows_vnni, family##_rows_vpopcnt, family##_rows_vbmi, family##_rows_neon, family##_rows_dotprod,        \
      family##_rows_i8mm;                                                                                              \
  KernelTable<Row> family##_rows(Isa isa, bool extensions = true);
#include "kernels/families.inc"
#undef FAMILY

struct KernelRow {
  const char *family, *isa;
  std::string key;     // what tells it from the other rows, separated by spaces
  const char* method;  // how it computes, where a family has several ways; else ""
};

// Every row that this CPU can run.
std::vector<KernelRow> kernel_rows();

}  // namespace lowbit
