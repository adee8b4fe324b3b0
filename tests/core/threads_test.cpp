#include "core/threads.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <atomic>
#include <set>
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

TEST(ParallelForStatic, GivesAnIndexToTheSameWorkerEveryTime) {
  const auto owners = [] {
    std::vector<int> workers(37, -1);
    parallel_for_static(37, 3,
                        [&](std::int64_t index, int worker) { workers[static_cast<std::size_t>(index)] = worker; });
    return workers;
  };
  EXPECT_EQ(owners(), owners());
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
