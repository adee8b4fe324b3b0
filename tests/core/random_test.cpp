#include "core/random.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

namespace qdelta::testing {
namespace {

// The published outputs of SplitMix64 for this seed.
TEST(Random, IsSplitMix64) {
  Random random(1234567);
  EXPECT_EQ(random.bits(), 6457827717110365317U);
  EXPECT_EQ(random.bits(), 3203168211198807973U);
  EXPECT_EQ(random.bits(), 9817491932198370423U);
  EXPECT_EQ(random.bits(), 4593380528125082431U);
  EXPECT_EQ(random.bits(), 16408922859458223821U);
}

TEST(Random, UniformCoversItsRangeEvenly) {
  Random random(1);
  constexpr int kCount = 100000;
  double sum = 0;
  double squares = 0;
  for (int i = 0; i < kCount; ++i) {
    const double value = random.uniform();
    ASSERT_GE(value, 0.0);
    ASSERT_LT(value, 1.0);
    sum += value;
    squares += value * value;
  }
  EXPECT_NEAR(sum / kCount, 1.0 / 2, 0.01);
  EXPECT_NEAR(squares / kCount, 1.0 / 3, 0.01);
}

TEST(Random, IntegersIncludeBothEnds) {
  Random random(2);
  std::set<std::int64_t> seen;
  for (int i = 0; i < 1000; ++i) seen.insert(random.integer(-2, 3));
  EXPECT_EQ(seen, (std::set<std::int64_t>{-2, -1, 0, 1, 2, 3}));
  EXPECT_EQ(random.integer(7, 7), 7);
}

TEST(Random, NormalHasItsMoments) {
  Random random(3);
  constexpr int kCount = 100000;
  double moments[5] = {};
  for (int i = 0; i < kCount; ++i) {
    const double value = random.normal();
    ASSERT_TRUE(std::isfinite(value));
    for (int power = 1; power <= 4; ++power) moments[power] += std::pow(value, power) / kCount;
  }
  EXPECT_NEAR(moments[1], 0, 0.02);
  EXPECT_NEAR(moments[2], 1, 0.02);
  EXPECT_NEAR(moments[3], 0, 0.06);
  EXPECT_NEAR(moments[4], 3, 0.15);
}

}  // namespace
}  // namespace qdelta::testing
