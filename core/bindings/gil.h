// Work that needs no Python object.
#pragma once
#include <nanobind/nanobind.h>

#include <cstdint>

namespace lowbit {

// Letting go of the GIL costs more than a small call does.
constexpr int64_t kReleaseAt = 8192;

template <class Work>
void without_gil(int64_t elements, Work&& work) {
  if (elements < kReleaseAt) {
    work();
  } else {
    const nanobind::gil_scoped_release release;
    work();
  }
}

}  // namespace lowbit
