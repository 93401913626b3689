// Errors of the public interface, raised by native code.
#pragma once
#include <stdexcept>
#include <string>

namespace lowbit {

// Becomes lowbit.InvalidProblem.
struct InvalidProblem : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace lowbit
