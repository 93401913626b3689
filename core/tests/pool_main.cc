// The thread pool's tests by themselves, for ThreadSanitizer: no kernels to instrument.
#include <cstdio>

#include "tests/check.h"

namespace lowbit {
namespace {
int failed = 0;
}

void report(bool good, const std::string& what) {
  std::printf("%s %s\n", good ? "passed" : "FAILED", what.c_str());
  failed += !good;
}

}  // namespace lowbit

int main() {
  lowbit::test_threads();
  return lowbit::failed == 0 ? 0 : 1;
}
