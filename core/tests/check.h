// What the files of tests share.
#pragma once
#include <string>

#include "base/arch.h"

namespace lowbit {

// Counts an outcome, and says what failed.
void report(bool good, const std::string& what);

// Sums, products, bounds, tables and pooling of codes on one ISA.
void test_combine(Isa isa);

}  // namespace lowbit
