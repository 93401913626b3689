// Work that needs no Python object.
#pragma once
#include <nanobind/nanobind.h>
#include <unistd.h>

#include <cstdint>

namespace lowbit {

// Lets other Python threads run for as long as this lives.
//
// A daemon thread may want the GIL back while the interpreter is shutting down. Before Python 3.14 it is then ended
// within PyEval_RestoreThread by pthread_exit, which unwinds its stack: through destructors, which must not be left
// that way, and through others that would touch Python objects without the GIL. Such a thread stops here for good
// instead, as Python 3.14 does by itself; the process ends without it.
class GilReleased {
 public:
  GilReleased() : state_(PyEval_SaveThread()) {}
  ~GilReleased() { take_back(state_); }
  GilReleased(const GilReleased&) = delete;
  GilReleased& operator=(const GilReleased&) = delete;

 private:
  struct StopUnwinding {
    bool has_returned = false;
    ~StopUnwinding() {
      while (!has_returned) pause();
    }
  };
  // A frame of its own: unwinding meets its cleanup before the destructor that may not be unwound.
  [[gnu::noinline]] static void take_back(PyThreadState* state) {
    StopUnwinding stop;
    PyEval_RestoreThread(state);
    stop.has_returned = true;
  }
  PyThreadState* state_;
};

// Letting go of the GIL costs more than a small call does.
constexpr int64_t kReleaseAt = 8192;

template <class Work>
void without_gil(int64_t elements, Work&& work) {
  if (elements < kReleaseAt) {
    work();
  } else {
    const GilReleased released;
    work();
  }
}

// A small product is computed faster than the GIL is released and taken again.
template <class Work>
void without_gil_for_product(int64_t m, int64_t n, int64_t k, Work&& work) {
  constexpr double kReleaseAtProducts = 1 << 18;
  const double products = static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  without_gil(products < kReleaseAtProducts ? 0 : kReleaseAt, work);
}

}  // namespace lowbit
