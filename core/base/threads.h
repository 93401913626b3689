// A persistent thread pool: workers spin briefly, then park; safe across fork.
#pragma once
#include <cstdint>

namespace lowbit {

// Threads used by parallel_for, the caller included. Default: LOWBIT_NUM_THREADS, else
// OMP_NUM_THREADS, else the CPUs this process may use (affinity and cgroup quota).
int num_threads();
void set_num_threads(int n);
int usable_cpus();

// Calls body(context, i) once for each i in [0, count), in any order and on any thread; returns when all are
// done. Work must be split by i alone, so results cannot depend on the number of threads. If another
// thread is already inside a parallel_for, the caller does its own work alone. Bodies run in an FpEnvironment.
//
// If a body throws on any thread, tasks that have not begun are skipped, the others are waited for, and the first
// exception is rethrown here. The pool stays usable.
void parallel_for(int64_t count, void (*body)(void*, int64_t), void* context);

template <class F>
void parallel_for(int64_t count, const F& body) {
  parallel_for(count, [](void* f, int64_t i) { (*static_cast<const F*>(f))(i); }, const_cast<F*>(&body));
}

}  // namespace lowbit
