// What timings say, and when they cannot be relied upon: on made-up samples, as no test should depend on a clock.
#include "bench/timing.h"

#include <gtest/gtest.h>

#include "bench/serve_bench.h"

namespace qdelta::testing {
namespace {

using bench::doubt_of;
using bench::Limit;
using bench::limit_of;
using bench::Timing;
using bench::timing_of;

const Limit kQuietLimit = limit_of(100, timing_of({1.0, 1.02, 1.01, 1.05, 1.03}));

TEST(Timing, HasTheBestAndTheMedian) {
  const Timing timing = timing_of({3, 1, 9, 2, 4});
  EXPECT_EQ(timing.best, 1);
  EXPECT_EQ(timing.median, 3);
  EXPECT_EQ(timing.calls, 5);
}

TEST(Timing, ALimitIsTheBestThatWasSeen) {
  EXPECT_EQ(kQuietLimit.rate, 100);
  EXPECT_EQ(bench::larger(kQuietLimit, limit_of(100, timing_of({0.5, 0.5, 0.5}))).rate, 200);
  EXPECT_EQ(bench::larger(kQuietLimit, limit_of(100, timing_of({2, 2, 2}))).rate, 100);
}

TEST(Timing, QuietOnesCanBeReliedUponNoisyOnesNot) {
  const Timing quiet = timing_of({2.0, 2.1, 2.05, 2.2, 7.0});  // one of them hit: the median does not mind
  EXPECT_EQ(doubt_of(quiet, 50, kQuietLimit), "");
  const Timing hit = timing_of({2.0, 9, 8, 11, 2.1});  // most of them
  EXPECT_NE(doubt_of(hit, 10, kQuietLimit).find("4.0 times as long as the best"), std::string::npos)
      << doubt_of(hit, 10, kQuietLimit);
  EXPECT_NE(doubt_of(timing_of({2, 2}), 50, kQuietLimit).find("too few timings (2)"), std::string::npos);
}

// Threads that lost their cores while the limit was measured: the limit is then far too low.
TEST(Timing, SoAreThoseOfTheLimit) {
  const Timing quiet = timing_of({2.0, 2.1, 2.05});
  const Limit noisy = limit_of(100, timing_of({1, 6, 5, 7, 1.1}));
  EXPECT_NE(doubt_of(quiet, 50, noisy).find("of its limit half of its timings"), std::string::npos);
  const Limit wrong = limit_of(0.034, timing_of({1, 1, 1}));  // steady, and wrong
  EXPECT_NE(doubt_of(quiet, 100, wrong).find("2941.2 times its limit"), std::string::npos);
  EXPECT_EQ(doubt_of(quiet, 105, kQuietLimit), "");  // as near as two measurements of one thing are
  EXPECT_NE(doubt_of(quiet, 115, kQuietLimit), "");
}

TEST(Timing, IsRepeatedWhereItIsNotSteady) {
  const std::vector<std::vector<double>> rounds{{1, 9, 9, 9}, {5, 3, 4, 3.5}, {6, 6, 6, 7}, {1, 1, 1, 1}};
  std::size_t next = 0;
  const Timing timing = bench::steadiest([&] { return rounds[next++]; });
  EXPECT_EQ(next, 3U);  // none of them near the best
  EXPECT_EQ(timing.best, 1);
  EXPECT_EQ(timing.median, 4);
  EXPECT_FALSE(is_steady(timing));
  next = 3;
  EXPECT_TRUE(is_steady(bench::steadiest([&] { return rounds[next++]; })));
  EXPECT_EQ(next, 4U);  // at once
}

TEST(Timing, ALoadIsJudgedByItsParts) {
  const Timing step = timing_of({0.1, 0.1, 0.1});  // 2 tokens in 0.1 s: 20 a second
  bench::LoadResult load;
  load.seconds = 10;
  load.tokens_of_part = {30, 32, 31, 30, 33};
  EXPECT_EQ(bench::doubt_of_load(load, step, 2), "");
  load.tokens_of_part = {30, 8, 9, 7, 33};
  EXPECT_NE(bench::doubt_of_load(load, step, 2).find("times as long as the best"), std::string::npos);
  load.tokens_of_part = {30, 0, 32, 31, 33};
  EXPECT_NE(bench::doubt_of_load(load, step, 2).find("no token came"), std::string::npos);
  load.tokens_of_part = {90, 91, 92, 90, 93};  // 45 a second, where 20 are the limit
  EXPECT_NE(bench::doubt_of_load(load, step, 2).find("times its limit"), std::string::npos);
}

}  // namespace
}  // namespace qdelta::testing
