#include "core/threads.h"

#include <gtest/gtest.h>
#include <omp.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

namespace qdelta::testing {
namespace {

struct Dynamic {
  template <class Body>
  static void run(std::int64_t count, int threads, const Body& body) {
    parallel_for(count, threads, body);
  }
};
struct Static {
  template <class Body>
  static void run(std::int64_t count, int threads, const Body& body) {
    parallel_for_static(count, threads, body);
  }
};

template <class Schedule>
class ParallelFor : public ::testing::Test {};
using Schedules = ::testing::Types<Dynamic, Static>;
TYPED_TEST_SUITE(ParallelFor, Schedules);

TYPED_TEST(ParallelFor, VisitsEachIndexOnce) {
  for (const std::int64_t count : {0, 1, 2, 3, 7, 64, 1000}) {
    for (const int threads : {1, 2, 3, 8}) {
      std::vector<std::atomic<int>> visits(static_cast<std::size_t>(count));
      std::atomic<int> outside{0};
      TypeParam::run(count, threads, [&](std::int64_t index, int worker) {
        ++visits[static_cast<std::size_t>(index)];
        if (worker < 0 || worker >= threads || worker >= count) ++outside;
      });
      EXPECT_TRUE(std::all_of(visits.begin(), visits.end(), [](const auto& n) { return n == 1; }))
          << count << " indices, " << threads << " threads";
      EXPECT_EQ(outside, 0) << "a worker without scratch space: " << count << " indices, " << threads << " threads";
    }
  }
}

// A worker's scratch space belongs to one index at a time.
TYPED_TEST(ParallelFor, WorkersDoNotShareANumber) {
  std::vector<std::atomic<int>> busy(4);
  std::atomic<int> clashes{0};
  TypeParam::run(200, 4, [&](std::int64_t, int worker) {
    if (busy[static_cast<std::size_t>(worker)].exchange(1) != 0) ++clashes;
    busy[static_cast<std::size_t>(worker)] = 0;
  });
  EXPECT_EQ(clashes, 0);
}

// Each thread begins with its own share: the first index of one waits for the first of the other.
TEST(ParallelForStatic, GivesEachWorkerItsOwnShareFirst) {
  for (int round = 0; round < 20; ++round) {
    std::vector<std::atomic<int>> worker_of(8);
    for (auto& worker : worker_of) worker = -1;
    parallel_for_static(8, 2, [&](std::int64_t index, int worker) {
      worker_of[static_cast<std::size_t>(index)] = worker;
      if (index != 0 && index != 4) return;
      while (worker_of[static_cast<std::size_t>(4 - index)] < 0) std::this_thread::yield();
    });
    EXPECT_EQ(worker_of[0], 0);
    EXPECT_EQ(worker_of[4], 1);
  }
}

// A thread that does not come along, because something else has its core, holds up what it has begun and no more: the
// first index of all ends after all the others.
TYPED_TEST(ParallelFor, OthersTakeWhatASlowWorkerHasNotBegun) {
  for (int round = 0; round < 20; ++round) {
    std::atomic<bool> begun{false};
    std::atomic<int> ended{0};
    TypeParam::run(8, 2, [&](std::int64_t, int) {
      if (!begun.exchange(true)) {
        while (ended < 7) std::this_thread::yield();
      }
      ++ended;
    });
    EXPECT_EQ(ended, 8);
  }
}

TYPED_TEST(ParallelFor, ManyCallersAtOnceGetAllTheirIndices) {
  constexpr int kCallers = 20;  // more than the pool has loops at a time
  std::atomic<int> wrong{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < kCallers; ++caller) {
    callers.emplace_back([&wrong, caller] {
      for (int round = 0; round < 100; ++round) {
        std::vector<int> visits(
            static_cast<std::size_t>(2 + (caller + round) % 50));  // plain: the loop's end orders it
        TypeParam::run(static_cast<std::int64_t>(visits.size()), 2 + caller % 3,
                       [&](std::int64_t index, int) { ++visits[static_cast<std::size_t>(index)]; });
        if (!std::all_of(visits.begin(), visits.end(), [](int n) { return n == 1; })) ++wrong;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(wrong, 0);
}

// A loop in a body has the scratch space of one thread, and libraries start no threads there.
TYPED_TEST(ParallelFor, LoopsAndLibrariesWithinABodyStayInItsThread) {
  std::atomic<int> elsewhere{0};
  TypeParam::run(8, 2, [&](std::int64_t, int) {
    const auto here = std::this_thread::get_id();
    if (omp_get_max_threads() != 1) ++elsewhere;
    parallel_for(4, 2, [&](std::int64_t, int worker) {
      if (worker != 0 || std::this_thread::get_id() != here) ++elsewhere;
    });
  });
  EXPECT_EQ(elsewhere, 0);
}

// The pool's threads stay with the parent.
TEST(ParallelForInAChild, WorksAfterAFork) {
  const auto count = [] {
    std::atomic<int> visits{0};
    parallel_for(100, 2, [&](std::int64_t, int) { ++visits; });
    return visits.load();
  };
  EXPECT_EQ(count(), 100);
  const pid_t child = fork();
  if (child == 0) _exit(count() == 100 ? 0 : 1);
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

TEST(ThreadCount, IsWhatWasAskedForOrAll) {
  EXPECT_EQ(thread_count(3), 3);
  EXPECT_EQ(thread_count(0), omp_get_max_threads());
  EXPECT_GE(thread_count(0), 1);
}

TEST(SingleThreaded, LastsAsLongAsItLives) {
  const int before = omp_get_max_threads();
  {
    const SingleThreaded alone;
    EXPECT_EQ(omp_get_max_threads(), 1);
  }
  EXPECT_EQ(omp_get_max_threads(), before);
}

}  // namespace
}  // namespace qdelta::testing
