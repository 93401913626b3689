#include "base/threads.h"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <utility>

#include "base/fp_environment.h"
#include "base/memory.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace lowbit {
namespace {

void relax() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// cgroup v2 or v1 CPU quota, rounded up; 0: none.
int cgroup_cpus() {
  long quota = 0, period = 0;  // what is no number, such as "max", is read as 0
  if (std::ifstream v2("/sys/fs/cgroup/cpu.max"); v2) {
    v2 >> quota >> period;
  } else {
    std::ifstream("/sys/fs/cgroup/cpu/cpu.cfs_quota_us") >> quota;
    std::ifstream("/sys/fs/cgroup/cpu/cpu.cfs_period_us") >> period;
  }
  return quota > 0 && period > 0 ? static_cast<int>((quota + period - 1) / period) : 0;
}

int default_threads() {
  for (const char* variable : {"LOWBIT_NUM_THREADS", "OMP_NUM_THREADS"}) {
    const char* text = std::getenv(variable);
    const int n = text != nullptr ? std::atoi(text) : 0;  // OMP_NUM_THREADS may be "4,2": the first counts
    if (n > 0) return n;
  }
  return usable_cpus();
}

constexpr int kMaxThreads = 256;
constexpr int kSpins = 20000;  // about 50-300 us of polling before a worker parks

class Pool {
 public:
  Pool() { set_threads(default_threads()); }

  int threads() const { return wanted_.load(std::memory_order_relaxed); }
  void set_threads(int n) { wanted_ = n < 1 ? 1 : (n > kMaxThreads ? kMaxThreads : n); }

  void run(int64_t count, void (*body)(void*, int64_t), void* context) {
    prepare_thread();
    const int64_t useful = count < threads() ? count : threads();
    if (useful <= 1 || busy_.exchange(true, std::memory_order_acquire)) {
      const FpEnvironment environment;
      for (int64_t i = 0; i < count; ++i) body(context, i);
      return;
    }
    start_workers(static_cast<int>(useful) - 1);
    body_ = body, context_ = context, count_ = count;
    helpers_ = static_cast<int>(useful) - 1;
    for (int t = 0; t <= helpers_; ++t) lanes_[t].next.store(first_of(t), std::memory_order_relaxed);
    active_.store(kOpen, std::memory_order_release);
    generation_.fetch_add(1, std::memory_order_seq_cst);
    if (parked_.load(std::memory_order_seq_cst) > 0) generation_.notify_all();
    work(0);
    active_.fetch_and(~kOpen, std::memory_order_acq_rel);
    while (active_.load(std::memory_order_acquire) != 0) relax();
    // No worker is inside the job any more: move the error out, and release the pool.
    const std::exception_ptr error = std::exchange(error_, nullptr);
    failed_.store(false, std::memory_order_relaxed);
    busy_.store(false, std::memory_order_release);
    if (error) std::rethrow_exception(error);
  }

 private:
  // active_: kOpen while a job may be joined, plus the number of workers inside it.
  static constexpr uint32_t kOpen = 1u << 31;

  // Each thread has its own run of tasks, the same in the next call, so that their data is still in its caches. A
  // thread that has finished its run takes remaining tasks of the others.
  int64_t first_of(int lane) const { return count_ * lane / (helpers_ + 1); }

  // An exception must not leave a worker's thread, which would end the process, nor the caller's while workers use its
  // stack.
  void work(int own) noexcept {
    const FpEnvironment environment;
    try {
      const int lanes = helpers_ + 1;
      for (int k = 0; k < lanes; ++k) {
        const int lane = (own + k) % lanes;
        const int64_t end = first_of(lane + 1);
        std::atomic<int64_t>& next = lanes_[lane].next;
        for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < end;) body_(context_, i);
      }
    } catch (...) {
      if (!failed_.exchange(true, std::memory_order_relaxed)) error_ = std::current_exception();
      for (int t = 0; t <= helpers_; ++t) lanes_[t].next.store(count_, std::memory_order_relaxed);  // skip the rest
    }
  }

  bool join() {
    uint32_t now = active_.load(std::memory_order_acquire);
    while ((now & kOpen) != 0)
      if (active_.compare_exchange_weak(now, now + 1, std::memory_order_acq_rel)) return true;
    return false;
  }

  void start_workers(int n) {
    if (started_ >= n) return;
    for (; started_ < n; ++started_) {
      const uint32_t seen = generation_.load(std::memory_order_acquire);
      const int index = started_;
      try {
        std::thread([this, seen, index] { worker(seen, index); }).detach();
      } catch (const std::system_error&) {
        break;  // no more threads available: the caller does the work
      } catch (const std::bad_alloc&) {
        break;  // likewise
      }
    }
    while (prepared_.load(std::memory_order_acquire) < started_) std::this_thread::yield();
  }

  void worker(uint32_t seen, int index) {
    prepare_thread();
    prepared_.fetch_add(1, std::memory_order_release);
    for (;;) {
      int spins = 0;
      while (generation_.load(std::memory_order_acquire) == seen) {
        if (++spins < kSpins) {
          relax();
        } else {
          parked_.fetch_add(1, std::memory_order_seq_cst);
          generation_.wait(seen, std::memory_order_seq_cst);
          parked_.fetch_sub(1, std::memory_order_seq_cst);
        }
      }
      seen = generation_.load(std::memory_order_acquire);
      if (join()) {
        if (index < helpers_) work(index + 1);
        active_.fetch_sub(1, std::memory_order_acq_rel);
      }
    }
  }

  std::atomic<int> wanted_{1};
  std::atomic<bool> busy_{false};
  int started_ = 0;               // workers
  std::atomic<int> prepared_{0};  // of them, those that can run tasks when memory is exhausted
  void (*body_)(void*, int64_t) = nullptr;
  void* context_ = nullptr;
  int64_t count_ = 0;
  int helpers_ = 0;
  std::atomic<bool> failed_{false};  // a task threw
  std::exception_ptr error_;         // the first exception thrown
  struct alignas(64) Lane {
    std::atomic<int64_t> next{0};  // task
  };
  Lane lanes_[kMaxThreads];
  alignas(64) std::atomic<uint32_t> active_{0};
  alignas(64) std::atomic<uint32_t> generation_{0};
  std::atomic<int> parked_{0};
};

// Lives in static storage and is never destroyed: parked workers may outlive static destructors.
alignas(Pool) unsigned char pool_storage[sizeof(Pool)];
Pool* pool_instance = nullptr;
std::once_flag pool_once;

// A forked child has none of its parent's workers: it starts over with an empty pool of the same width.
void restart_in_child() {
  if (pool_instance == nullptr) return;
  const int n = pool_instance->threads();
  pool_instance = new (pool_storage) Pool();
  pool_instance->set_threads(n);
}

Pool& pool() {
  std::call_once(pool_once, [] {
    pool_instance = new (pool_storage) Pool();
    pthread_atfork(nullptr, nullptr, restart_in_child);
  });
  return *pool_instance;
}

}  // namespace

int usable_cpus() {
  int n = 0;
#if defined(__linux__)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) n = CPU_COUNT(&set);
#endif
  if (n <= 0) n = static_cast<int>(std::thread::hardware_concurrency());
  const int quota = cgroup_cpus();
  if (quota > 0 && quota < n) n = quota;
  return n > 0 ? n : 1;
}

int num_threads() { return pool().threads(); }
void set_num_threads(int n) { pool().set_threads(n); }

void parallel_for(int64_t count, void (*body)(void*, int64_t), void* context) { pool().run(count, body, context); }

}  // namespace lowbit
