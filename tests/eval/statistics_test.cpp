// Means, perplexities and their errors, by hand and against Python's random numbers.
#include "eval/statistics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "testing.h"

namespace qdelta::eval {
namespace {

std::vector<Sample> samples_of(const std::vector<double>& values) {
  std::vector<Sample> samples;
  for (const double value : values) samples.push_back({value, 1});
  return samples;
}

TEST(Statistics, AMeanHasTheSampleDeviationOverTheRoot) {
  const Estimate estimate = aggregate(Aggregation::mean, samples_of({1, 0, 0, 1, 1}), {});
  EXPECT_DOUBLE_EQ(estimate.value, 0.6);
  // sqrt((3 * 0.16 + 2 * 0.36) / 4) / sqrt(5)
  ASSERT_TRUE(estimate.error);
  EXPECT_NEAR(*estimate.error, std::sqrt(0.3 / 5), 1e-15);
}

TEST(Statistics, OneExampleHasNoError) {
  EXPECT_FALSE(aggregate(Aggregation::mean, samples_of({1}), {}).error);
  EXPECT_THROW(static_cast<void>(aggregate(Aggregation::mean, {}, {})), Error);
}

TEST(Statistics, WeightsShareTheLogLikelihood) {
  const std::vector<Sample> samples{{-6, 2}, {-3, 1}, {-9, 6}};
  const Estimate words = aggregate(Aggregation::weighted_perplexity, samples, {});
  EXPECT_NEAR(words.value, std::exp(2.0), 1e-12);
  EXPECT_FALSE(words.error);
  EXPECT_NEAR(aggregate(Aggregation::bits_per_byte, samples, {}).value, 2 / std::log(2.0), 1e-12);
}

// random.Random(i).choices in chunks of 1000, as lm-evaluation-harness 0.4 does; the numbers come from Python 3.11.
TEST(Statistics, ThePerplexitysErrorIsTheHarnesss) {
  const std::vector<Sample> samples = samples_of({-1.5, -0.25, -4.0, -2.75, -0.5, -3.125, -0.0625});
  const Estimate estimate = aggregate(Aggregation::perplexity, samples, {3000, 2});
  EXPECT_NEAR(estimate.value, 5.703450990523362, 1e-12);
  ASSERT_TRUE(estimate.error);
  EXPECT_NEAR(*estimate.error, 3.9269674330284206, 1e-11);
  EXPECT_EQ(*aggregate(Aggregation::perplexity, samples, {3000, 1}).error, *estimate.error);
  // Fewer than a chunk; and what does not fill one is left out.
  EXPECT_NEAR(*aggregate(Aggregation::perplexity, samples, {50, 1}).error, 3.988325075580715, 1e-11);
  EXPECT_EQ(*aggregate(Aggregation::perplexity, samples, {3999, 1}).error, *estimate.error);
  EXPECT_FALSE(aggregate(Aggregation::perplexity, samples, {0, 1}).error);
}

}  // namespace
}  // namespace qdelta::eval
