// From logits to tokens: every option by itself, on logits whose probabilities are known.
#include "infer/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "testing.h"

namespace qdelta::testing {
namespace {

using Counts = std::vector<int>;

// Probabilities 1/2, 1/4, 1/8, 1/16, 1/16 in a mixed order.
const std::vector<double> kProbabilities{0.125, 0.5, 0.0625, 0.25, 0.0625};

std::vector<float> logits() {
  std::vector<float> values;
  for (const double p : kProbabilities) values.push_back(static_cast<float>(std::log(p) + 3));
  return values;
}

constexpr int kDraws = 20'000;

Counts draw(const SamplingOptions& options, const std::vector<std::int32_t>& seen = {}, int draws = kDraws) {
  Sampler sampler(options, 0);
  Counts counts(kProbabilities.size());
  for (int i = 0; i < draws; ++i) ++counts[static_cast<std::size_t>(sampler.next(logits(), seen))];
  return counts;
}

// Six standard deviations: a wrong weight shows, chance does not.
void expect_shares(const Counts& counts, const std::vector<double>& shares) {
  for (std::size_t i = 0; i < shares.size(); ++i) {
    const double spread = std::sqrt(kDraws * shares[i] * (1 - shares[i]));
    EXPECT_NEAR(counts[i], kDraws * shares[i], 6 * spread) << "token " << i;
  }
}

SamplingOptions with(const auto& change) {
  SamplingOptions options;
  options.temperature = 1;
  change(options);
  return options;
}
using O = SamplingOptions;

TEST(Sampler, AtTemperatureOneTheProbabilitiesAreTheModels) {
  expect_shares(draw(with([](O&) {})), kProbabilities);
}

TEST(Sampler, TheTemperatureIsAPowerOfTheProbabilities) {
  for (const double temperature : {0.5, 2.0}) {
    std::vector<double> shares;
    double sum = 0;
    for (const double p : kProbabilities) sum += std::pow(p, 1 / temperature);
    for (const double p : kProbabilities) shares.push_back(std::pow(p, 1 / temperature) / sum);
    expect_shares(draw(with([&](O& o) { o.temperature = static_cast<float>(temperature); })), shares);
  }
}

TEST(Sampler, WithoutTemperatureTheMostLikelyAndOfEqualsTheFirst) {
  const SamplingOptions options = with([](O& o) { o.temperature = 0; });
  EXPECT_EQ(draw(options, {}, 5), (Counts{0, 5, 0, 0, 0}));
  Sampler sampler(options, 0);
  EXPECT_EQ(sampler.next(std::vector<float>{-1, 2, 2, 2}, {}), 1);
}

TEST(Sampler, TopKKeepsTheKMostLikely) {
  EXPECT_EQ(draw(with([](O& o) { o.top_k = 1; }), {}, 50), (Counts{0, 50, 0, 0, 0}));
  expect_shares(draw(with([](O& o) { o.top_k = 2; })), {0, 2.0 / 3, 0, 1.0 / 3, 0});
  // Of two that are equally likely the first is kept.
  expect_shares(draw(with([](O& o) { o.top_k = 4; })), {2.0 / 15, 8.0 / 15, 1.0 / 15, 4.0 / 15, 0});
  expect_shares(draw(with([](O& o) { o.top_k = 5; })), kProbabilities);
  expect_shares(draw(with([](O& o) { o.top_k = 1000; })), kProbabilities);
}

TEST(Sampler, TopPKeepsTheFewestThatReachIt) {
  EXPECT_EQ(draw(with([](O& o) { o.top_p = 0.01F; }), {}, 50), (Counts{0, 50, 0, 0, 0}));
  expect_shares(draw(with([](O& o) { o.top_p = 0.6F; })), {0, 2.0 / 3, 0, 1.0 / 3, 0});
  expect_shares(draw(with([](O& o) { o.top_p = 0.8F; })), {1.0 / 7, 4.0 / 7, 0, 2.0 / 7, 0});
  expect_shares(draw(with([](O& o) { o.top_p = 1; })), kProbabilities);
}

TEST(Sampler, MinPKeepsThoseThatAreLikelyBesideTheMostLikely) {
  expect_shares(draw(with([](O& o) { o.min_p = 0.4F; })), {0, 2.0 / 3, 0, 1.0 / 3, 0});
  expect_shares(draw(with([](O& o) { o.min_p = 0.2F; })), {1.0 / 7, 4.0 / 7, 0, 2.0 / 7, 0});
  EXPECT_EQ(draw(with([](O& o) { o.min_p = 0.9F; }), {}, 50), (Counts{0, 50, 0, 0, 0}));
}

TEST(Sampler, ThePenaltyDividesPositiveLogitsAndMultipliesNegativeOnesOnce) {
  Sampler sampler(with([](O& o) {
                    o.temperature = 0;
                    o.repetition_penalty = 2;
                  }),
                  0);
  const std::vector<float> positive{3, 2, 1};
  EXPECT_EQ(sampler.next(positive, std::vector<std::int32_t>{}), 0);
  EXPECT_EQ(sampler.next(positive, std::vector<std::int32_t>{0}), 1);                        // 1.5, 2, 1
  EXPECT_EQ(sampler.next(positive, std::vector<std::int32_t>{0, 0, 1, 0}), 0);               // 1.5, 1, 1: not once more
  EXPECT_EQ(sampler.next(std::vector<float>{-2, -3, -5}, std::vector<std::int32_t>{0}), 1);  // -4, -3, -5
  EXPECT_EQ(sampler.next(positive, std::vector<std::int32_t>{0, -1, 3, 1 << 30}), 1);        // what is no token of it
}

TEST(Sampler, SeedAndStreamDecide) {
  const auto tokens = [](std::uint64_t seed, std::uint64_t stream) {
    Sampler sampler(with([&](O& o) { o.seed = seed; }), stream);
    std::vector<std::int32_t> drawn;
    for (int i = 0; i < 40; ++i) drawn.push_back(sampler.next(logits(), {}));
    return drawn;
  };
  EXPECT_EQ(tokens(1, 0), tokens(1, 0));
  EXPECT_NE(tokens(1, 0), tokens(2, 0));
  EXPECT_NE(tokens(1, 0), tokens(1, 1));
}

TEST(Sampler, InfiniteLogits) {
  const float infinity = std::numeric_limits<float>::infinity();
  Sampler sampler(with([](O&) {}), 0);
  for (int i = 0; i < 50; ++i) EXPECT_EQ(sampler.next(std::vector<float>{-infinity, -5, -infinity}, {}), 1);
  for (int i = 0; i < 50; ++i) EXPECT_EQ(sampler.next(std::vector<float>{1, 2, infinity}, {}), 2);
}

TEST(Sampler, RefusesWhatIsNoNumber) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const float temperature : {0.0F, 1.0F}) {
    Sampler sampler(with([&](O& o) { o.temperature = temperature; }), 0);
    expect_error(Status::corrupt, {"no number", "not finite"}, [&] {
      return sampler.next(std::vector<float>{1, -5, nan}, {});
    });
  }
}

// Seeds that lie side by side must not give the same numbers a place further on.
TEST(Sampler, SeedsHaveNothingInCommon) {
  const std::vector<float> even(1000, 0.0F);
  const auto tokens = [&](std::uint64_t seed, std::uint64_t stream) {
    Sampler sampler(with([&](O& o) { o.seed = seed; }), stream);
    std::vector<std::int32_t> drawn;
    for (int i = 0; i < 100; ++i) drawn.push_back(sampler.next(even, {}));
    return drawn;
  };
  const std::vector<std::int32_t> first = tokens(1, 0);
  for (const auto& other : {tokens(2, 0), tokens(3, 0), tokens(1, 1), tokens(0, 1)}) {
    for (std::ptrdiff_t shift = 0; shift < 4; ++shift) {
      std::int64_t equal = 0;
      for (std::ptrdiff_t i = shift; i < 100; ++i) {
        equal += first[static_cast<std::size_t>(i)] == other[static_cast<std::size_t>(i - shift)];
      }
      EXPECT_LE(equal, 5) << "shifted by " << shift;
    }
  }
}

TEST(SamplingOptions, NameWhatMakesNoSense) {
  const auto expect = [](const std::string& name, const auto& change) {
    expect_error(Status::invalid_argument, {name}, [&] {
      with(change).check();
      return 0;
    });
  };
  EXPECT_NO_THROW(SamplingOptions().check());
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const float bad : {-0.1F, nan, std::numeric_limits<float>::infinity()}) {
    expect("temperature", [&](O& o) { o.temperature = bad; });
  }
  expect("top-k", [](O& o) { o.top_k = -1; });
  for (const float bad : {0.0F, -1.0F, 1.01F, nan}) expect("top-p", [&](O& o) { o.top_p = bad; });
  for (const float bad : {-0.1F, 1.0F, nan}) expect("min-p", [&](O& o) { o.min_p = bad; });
  for (const float bad : {0.0F, -1.0F, nan}) expect("repetition penalty", [&](O& o) { o.repetition_penalty = bad; });
}

}  // namespace
}  // namespace qdelta::testing
