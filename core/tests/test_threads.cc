// The thread pool: every index once, and every way in which a body can throw.
#include <atomic>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "base/threads.h"
#include "tests/check.h"

namespace lowbit {
namespace {

// Waits until this many tasks have begun: each then has a thread of its own.
class Meeting {
 public:
  explicit Meeting(int expected) : expected_(expected) {}
  void join() {
    ++here_;
    while (here_ < expected_) std::this_thread::yield();
  }

 private:
  const int expected_;
  std::atomic<int> here_{0};
};

// Two threads take part, each index is taken once.
bool is_intact() {
  bool good = true;
  for (int repeat = 0; repeat < 20; ++repeat) {
    Meeting meeting(2);
    std::atomic<int> others{0};
    const auto caller = std::this_thread::get_id();
    parallel_for(2, [&](int64_t) {
      meeting.join();
      others += std::this_thread::get_id() != caller;
    });
    good &= others == 1;
    std::vector<int> hits(37, 0);
    parallel_for(static_cast<int64_t>(hits.size()), [&](int64_t i) { hits[i] += 1; });
    for (const int h : hits) good &= h == 1;
  }
  return good;
}

// What parallel_for throws, or "".
template <class Body>
std::string thrown_by(int64_t count, const Body& body) {
  try {
    parallel_for(count, body);
  } catch (const std::runtime_error& e) {
    return e.what();
  }
  return "";
}

void test_indices() {
  bool good = true;
  for (const int n : {1, 2, 3, 7}) {
    set_num_threads(n);
    for (int repeat = 0; repeat < 200; ++repeat) {
      std::vector<int> hits(repeat % 37, 0);
      parallel_for(static_cast<int64_t>(hits.size()), [&](int64_t i) { hits[i] += 1; });
      for (const int h : hits) good &= h == 1;
    }
  }
  report(good, "threads: every index once");
}

void test_who_throws() {
  const auto caller = std::this_thread::get_id();
  for (const bool by_caller : {true, false}) {
    bool good = true;
    for (int repeat = 0; repeat < 50; ++repeat) {
      Meeting meeting(2);
      std::atomic<int> finished{0};
      const std::string what = thrown_by(2, [&](int64_t) {
        meeting.join();
        if ((std::this_thread::get_id() == caller) == by_caller) throw std::runtime_error("one");
        ++finished;  // uses the caller's stack after the other one has thrown
      });
      good &= what == "one" && finished == 1;
    }
    report(good && is_intact(), by_caller ? "threads: the caller's task throws" : "threads: a worker's task throws");
  }
  bool good = true;
  for (int repeat = 0; repeat < 50; ++repeat) {
    Meeting meeting(2);
    std::atomic<int> begun{0};
    const std::string what = thrown_by(1000, [&](int64_t i) {
      ++begun;
      meeting.join();
      throw std::runtime_error(i == 0 ? "first" : "last");
    });
    good &= (what == "first" || what == "last") && begun == 2;
  }
  report(good && is_intact(), "threads: all tasks throw, one exception arrives, tasks not begun are skipped");
}

void test_alone() {
  set_num_threads(1);
  int begun = 0;
  const std::string what = thrown_by(10, [&](int64_t i) {
    ++begun;
    if (i == 3) throw std::runtime_error("three");
  });
  set_num_threads(2);
  report(what == "three" && begun == 4 && is_intact(), "threads: a task throws on the only thread");
}

void test_nested() {
  bool good = true;
  for (int repeat = 0; repeat < 50; ++repeat) {
    const auto inner = [](int64_t i) {
      if (i == 5) throw std::runtime_error("inner");
    };
    good &= thrown_by(8, [&](int64_t) { parallel_for(8, inner); }) == "inner";
    // What a body catches is no error of the job.
    std::atomic<int> caught{0};
    good &= thrown_by(8, [&](int64_t) { caught += thrown_by(8, inner) == "inner"; }) == "" && caught == 8;
  }
  report(good && is_intact(), "threads: a body that is itself parallel throws");
}

// Callers that find the pool busy work alone; that one of them throws is no business of the others.
void test_callers_beside_each_other() {
  std::atomic<bool> good{true};
  std::vector<std::thread> callers;
  for (int c = 0; c < 3; ++c)
    callers.emplace_back([&good, c] {
      for (int repeat = 0; repeat < 300; ++repeat) {
        std::vector<int> hits(16, 0);
        const std::string what = thrown_by(16, [&](int64_t i) {
          hits[i] += 1;
          if (c > 0 && i == repeat % 16) throw std::runtime_error(std::to_string(c));
        });
        if (what != (c > 0 ? std::to_string(c) : "")) good = false;
        for (const int h : hits)
          if (c == 0 ? h != 1 : h > 1) good = false;
      }
    });
  for (std::thread& t : callers) t.join();
  report(good && is_intact(), "threads: several callers, some of whose bodies throw");
}

void test_kinds_of_errors() {
  bool memory = false;
  try {
    Meeting meeting(2);
    const auto caller = std::this_thread::get_id();
    parallel_for(2, [&](int64_t) {
      meeting.join();
      if (std::this_thread::get_id() != caller) throw std::bad_alloc();
    });
  } catch (const std::bad_alloc&) {
    memory = true;
  }
  report(memory && is_intact(), "threads: out of memory in a worker arrives as such");

  // The pool keeps nothing of an exception.
  const auto held = std::make_shared<int>(1);
  struct Holding {
    std::shared_ptr<int> what;
  };
  try {
    parallel_for(64, [&](int64_t) { throw Holding{held}; });
  } catch (const Holding&) {
  }
  report(held.use_count() == 1 && is_intact(), "threads: an exception is let go of");
}

}  // namespace

void test_threads() {
  test_indices();
  set_num_threads(2);
  report(is_intact(), "threads: a caller and a worker");
  test_who_throws();
  test_alone();
  test_nested();
  test_callers_beside_each_other();
  test_kinds_of_errors();
}

}  // namespace lowbit
