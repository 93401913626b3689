// How the test programs say what they found; the counting is in test_kernels.cc.
#pragma once
#include <string>

namespace lowbit {

void report(bool good, const std::string& what);

}  // namespace lowbit
