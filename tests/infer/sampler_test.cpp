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

// A sequence of its own, which is shown the tokens seen anew each time.
class OneSequence {
 public:
  OneSequence(const SamplingOptions& options, std::uint64_t stream) : state_{.options = options, .stream = stream} {}

  std::int32_t next(std::vector<float> logits, std::span<const std::int32_t> seen) {
    const auto width = static_cast<std::int64_t>(logits.size());
    Sampler sampler({1}, 1, width);
    sampler.start(0, state_, seen);
    const std::vector<std::int64_t> slots{0};
    std::vector<std::int32_t> tokens{-7};
    sampler.sample({reinterpret_cast<std::byte*>(logits.data()), DType::f32, {1, width}}, slots, tokens);
    ++state_.draws;
    return tokens[0];
  }

 private:
  SamplingState state_;
};

constexpr int kDraws = 20'000;

Counts draw(const SamplingOptions& options, const std::vector<std::int32_t>& seen = {}, int draws = kDraws) {
  OneSequence sampler(options, 0);
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
  OneSequence sampler(options, 0);
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
  OneSequence sampler(with([](O& o) {
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

// Greedy, so that every logit shows.
std::vector<std::int32_t> greedy_tokens(SamplingState state, const std::vector<TokenBias>& bias, int count) {
  std::vector<float> values{3, 2, 1, 0.5F};
  state.options.temperature = 0;
  Sampler sampler({1}, 2, 4);
  sampler.start(1, state, {}, bias);
  std::vector<std::int32_t> tokens;
  for (int i = 0; i < count; ++i) {
    const std::vector<std::int64_t> slots{1};
    std::vector<std::int32_t> token{-7};
    sampler.sample({reinterpret_cast<std::byte*>(values.data()), DType::f32, {1, 4}}, slots, token);
    tokens.push_back(token[0]);
  }
  return tokens;
}

TEST(Sampler, ABiasIsAddedToLogits) {
  EXPECT_EQ(greedy_tokens({}, {{2, 2.5F}}, 3), (std::vector<std::int32_t>{2, 2, 2}));
  EXPECT_EQ(greedy_tokens({}, {{0, -100}, {1, -100}}, 2), (std::vector<std::int32_t>{2, 2}));
  EXPECT_EQ(greedy_tokens({}, {{0, -0.6F}, {0, -0.6F}}, 1), (std::vector<std::int32_t>{1}));
}

TEST(Sampler, PenaltiesOfTokensThatWereDrawn) {
  SamplingState once;
  once.options.presence_penalty = 1.2F;  // 1.8 2 1 0.5, then 1.8 0.8 1 0.5, and so it stays
  EXPECT_EQ(greedy_tokens(once, {}, 4), (std::vector<std::int32_t>{0, 1, 0, 0}));
  SamplingState each;
  each.options.frequency_penalty = 0.9F;  // 2.1, 1.2 2, 1.2 1.1 1, 0.3 1.1 1, 0.3 0.2 1
  EXPECT_EQ(greedy_tokens(each, {}, 5), (std::vector<std::int32_t>{0, 0, 1, 0, 1}));
  EXPECT_EQ(greedy_tokens(once, {{3, 3}}, 3), (std::vector<std::int32_t>{3, 0, 3}));
}

TEST(Sampler, EndsAreNotDrawnBeforeTheirTime) {
  SamplingState state;
  state.first_end = 2;
  state.ends[0] = 0;
  state.ends[1] = 1;
  EXPECT_EQ(greedy_tokens(state, {}, 4), (std::vector<std::int32_t>{2, 2, 0, 0}));
}

TEST(Sampler, SeedAndStreamDecide) {
  const auto tokens = [](std::uint64_t seed, std::uint64_t stream) {
    OneSequence sampler(with([&](O& o) { o.seed = seed; }), stream);
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
  OneSequence sampler(with([](O&) {}), 0);
  for (int i = 0; i < 50; ++i) EXPECT_EQ(sampler.next(std::vector<float>{-infinity, -5, -infinity}, {}), 1);
  for (int i = 0; i < 50; ++i) EXPECT_EQ(sampler.next(std::vector<float>{1, 2, infinity}, {}), 2);
}

TEST(Sampler, GivesNoTokenWhereALogitIsNoNumber) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const float temperature : {0.0F, 1.0F}) {
    OneSequence sampler(with([&](O& o) { o.temperature = temperature; }), 0);
    EXPECT_EQ(sampler.next(std::vector<float>{1, -5, nan}, {}), -1);
  }
}

// Rows with options of their own, in slots in any order, with a row that has none between them.
TEST(Sampler, ARowDoesNotDependOnTheOthers) {
  constexpr std::int64_t kVocabulary = 300;
  const std::vector<SamplingState> states{
      {.options = with([](O&) {}), .stream = 0},
      {.options = with([](O& o) { o.temperature = 0; }), .stream = 1},
      {.options = with([](O& o) { o.top_k = 7; }), .stream = 2},
      {.options = with([](O& o) { o.top_p = 0.7F, o.seed = 9; }), .stream = 2},
      {.options = with([](O& o) { o.min_p = 0.02F, o.repetition_penalty = 1.8F; }), .stream = 3}};
  const std::vector<std::int32_t> seen{3, 5, 250};
  Random random(5);
  std::vector<std::vector<float>> logits(states.size() * 20, std::vector<float>(kVocabulary));
  for (std::vector<float>& row : logits) {
    for (float& value : row) value = 2.0F * random.normal();
  }
  // Slot by slot, step by step, each slot alone.
  std::vector<std::vector<std::int32_t>> alone(states.size());
  for (std::size_t slot = 0; slot < states.size(); ++slot) {
    Sampler sampler({1}, 1, kVocabulary);
    sampler.start(0, states[slot], seen);
    for (std::size_t step = 0; step < 20; ++step) {
      const std::vector<std::int64_t> slots{0};
      std::vector<std::int32_t> token(1);
      std::vector<float>& row = logits[step * states.size() + slot];
      sampler.sample({reinterpret_cast<std::byte*>(row.data()), DType::f32, {1, kVocabulary}}, slots, token);
      alone[slot].push_back(token[0]);
    }
  }
  for (const int threads : {1, 3}) {
    Sampler sampler({threads}, static_cast<std::int64_t>(states.size()), kVocabulary);
    for (std::size_t slot = 0; slot < states.size(); ++slot) {
      sampler.start(static_cast<std::int64_t>(slot), states[slot], seen);
    }
    const std::vector<std::int64_t> slots{4, 2, -1, 0, 1, 3};
    for (std::size_t step = 0; step < 20; ++step) {
      std::vector<float> batch(slots.size() * kVocabulary, std::numeric_limits<float>::quiet_NaN());
      for (std::size_t row = 0; row < slots.size(); ++row) {
        if (slots[row] < 0) continue;
        const std::vector<float>& from = logits[step * states.size() + static_cast<std::size_t>(slots[row])];
        std::copy(from.begin(), from.end(), batch.begin() + static_cast<std::ptrdiff_t>(row * kVocabulary));
      }
      std::vector<std::int32_t> tokens(slots.size(), -7);
      sampler.sample({reinterpret_cast<std::byte*>(batch.data()), DType::f32, {6, kVocabulary}}, slots, tokens);
      for (std::size_t row = 0; row < slots.size(); ++row) {
        const std::int32_t expected = slots[row] < 0 ? -7 : alone[static_cast<std::size_t>(slots[row])][step];
        EXPECT_EQ(tokens[row], expected) << "row " << row << ", step " << step;
      }
    }
  }
}

TEST(Sampler, RefusesWhatDoesNotFit) {
  std::vector<float> logits(6);
  std::vector<SamplingState> states(2);
  std::vector<std::uint32_t> seen(2);
  std::vector<std::int32_t> tokens(2);
  std::vector<std::int64_t> slots{0, 1};
  const Device device{1};
  Workspace workspace(device);
  const Sample good{.logits = {reinterpret_cast<std::byte*>(logits.data()), DType::f32, {2, 3}},
                    .slots = slots,
                    .states = states,
                    .seen = seen,
                    .tokens = tokens};
  EXPECT_NO_THROW(sample(device, good, workspace));
  const auto expect = [&](const std::vector<std::string>& words, const auto& change) {
    Sample args = good;
    change(args);
    expect_error(Status::invalid_argument, words, [&] {
      sample(device, args, workspace);
      return 0;
    });
  };
  expect({"1 tokens for 2 rows"}, [](Sample& args) { args.tokens = args.tokens.first(1); });
  expect({"1 slots", "2 rows"}, [](Sample& args) { args.slots = args.slots.first(1); });
  expect({"seen has 1 words"}, [](Sample& args) { args.seen = args.seen.first(1); });
  Workspace none{std::span<std::byte>()};
  expect_error(Status::invalid_argument, {"workspace"}, [&] {
    sample(device, good, none);
    return 0;
  });
  slots[1] = 2;
  expect({"no slot 2"}, [](Sample&) {});
  slots[1] = 1;
  states[0].options.top_p = 0;
  expect({"top-p"}, [](Sample&) {});
}

// Seeds that lie side by side must not give the same numbers a place further on.
TEST(Sampler, SeedsHaveNothingInCommon) {
  const std::vector<float> even(1000, 0.0F);
  const auto tokens = [&](std::uint64_t seed, std::uint64_t stream) {
    OneSequence sampler(with([&](O& o) { o.seed = seed; }), stream);
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
