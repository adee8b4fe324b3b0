// Scores against logits in double, and that neither batches, nor pieces, nor a shared prefix change them.
#include "infer/scoring.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "generating_case.h"
#include "testing.h"

namespace qdelta::testing {
namespace {

using Ids = std::vector<std::int32_t>;
using Scores = std::vector<TokenScore>;

const std::string kScoredText =
    "the river runs past the mill, and the mill has stood there longer than anyone can remember; its wheel has not "
    "turned for years, but the water has not been told, and so it goes on coming down from the hills in the spring. ";

Ids long_text(std::size_t bytes) {
  std::string text;
  while (text.size() < bytes) text += kScoredText;
  return bytes_of(text.substr(0, bytes));
}

// log softmax of every row of the model's logits, in double.
std::vector<std::vector<double>> expected_chances(const LanguageModel& model, const Ids& ids) {
  const auto count = static_cast<std::int64_t>(ids.size());
  Tensor logits(DType::f32, {count, model.config().vocab_size});
  ModelRunner runner(model, {1});
  const std::vector<std::int64_t> offsets{0, count};
  runner.logits({ids, offsets}, logits.view());
  const auto width = static_cast<std::size_t>(model.config().vocab_size);
  std::vector<std::vector<double>> rows;
  for (std::size_t n = 0; n < ids.size(); ++n) {
    const std::span<const float> z = std::as_const(logits).as<float>().subspan(n * width, width);
    double sum = 0;
    for (const float value : z) sum += std::exp(static_cast<double>(value));
    rows.emplace_back();
    for (const float value : z) rows.back().push_back(value - std::log(sum));
  }
  return rows;
}

ScoringRequest request_of(Ids tokens, std::int64_t from = 1) {
  ScoringRequest request;
  request.tokens = std::move(tokens);
  request.scored_from = from;
  return request;
}

void expect_near(const Scores& got, const Scores& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].token.token, expected[i].token.token);
    EXPECT_EQ(got[i].best.token, expected[i].best.token);
    EXPECT_NEAR(got[i].token.log_probability, expected[i].token.log_probability, 2e-4);
    EXPECT_NEAR(got[i].best.log_probability, expected[i].best.log_probability, 2e-4);
  }
}

class Scoring : public ::testing::Test {
 protected:
  std::unique_ptr<LanguageModel> model_ = speaking_model(speaking_config());
};

TEST_F(Scoring, IsTheLogSoftmaxOfTheLogits) {
  const Ids ids = bytes_of(kScoredText);
  const auto expected = expected_chances(*model_, ids);
  Scorer scorer(*model_, {1});
  const Scores got = scorer.score(std::vector{request_of(ids)}).front();
  ASSERT_EQ(got.size(), ids.size() - 1);
  int greedy = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const std::vector<double>& row = expected[i];
    const auto best = std::max_element(row.begin(), row.end());
    EXPECT_EQ(got[i].token.token, ids[i + 1]);
    EXPECT_NEAR(got[i].token.log_probability, row[static_cast<std::size_t>(ids[i + 1])], 1e-4);
    EXPECT_EQ(got[i].best.token, best - row.begin());
    EXPECT_NEAR(got[i].best.log_probability, *best, 1e-4);
    EXPECT_TRUE(got[i].top.empty());
    if (got[i].greedy()) {
      ++greedy;
      EXPECT_EQ(got[i].token.log_probability, got[i].best.log_probability);
    }
  }
  EXPECT_LT(greedy, static_cast<int>(got.size()));
}

TEST_F(Scoring, NamesTheMostLikely) {
  const Ids ids = bytes_of(kScoredText.substr(0, 40));
  const auto expected = expected_chances(*model_, ids);
  Scorer scorer(*model_, {1}, {.batch = 2, .top = 40});
  ScoringRequest request = request_of(ids, 5);
  request.next = true;
  const Scores got = scorer.score(std::vector{request}).front();
  ASSERT_EQ(static_cast<std::int64_t>(got.size()), request.scores());
  ASSERT_EQ(got.size(), ids.size() - 5 + 1);
  for (std::size_t i = 0; i < got.size(); ++i) {
    const std::vector<double>& row = expected[i + 4];
    ASSERT_EQ(got[i].top.size(), 40U);
    for (std::size_t k = 0; k < 40; ++k) {
      const TokenChance& chance = got[i].top[k];
      EXPECT_NEAR(chance.log_probability, row[static_cast<std::size_t>(chance.token)], 1e-4);
      if (k == 0) continue;
      EXPECT_LE(chance.log_probability, got[i].top[k - 1].log_probability);
      // The tokens without a voice all have the logit 0: of equals the smaller id first.
      if (chance.log_probability == got[i].top[k - 1].log_probability) {
        EXPECT_GT(chance.token, got[i].top[k - 1].token);
      }
    }
    EXPECT_EQ(got[i].best.token, got[i].top[0].token);
    EXPECT_EQ(got[i].best.log_probability, got[i].top[0].log_probability);
    for (const TokenChance& chance : got[i].top) {
      if (chance.token == got[i].token.token) {
        EXPECT_EQ(chance.log_probability, got[i].token.log_probability);
      }
    }
  }
  // What follows the last: the most likely.
  EXPECT_EQ(got.back().token.token, got.back().best.token);
  EXPECT_TRUE(got.back().greedy());
  EXPECT_LT(got.back().token.log_probability, 0);
}

TEST_F(Scoring, DoesNotDependOnTheBatch) {
  std::vector<ScoringRequest> requests;
  for (const std::size_t length : {2, 700, 3, 64, 65, 1300, 512, 513, 40}) {
    requests.push_back(request_of(long_text(length), length > 100 ? 90 : 1));
  }
  requests[3].next = true;
  Scorer alone(*model_, {1}, {.batch = 1});
  const auto expected = alone.score(requests);
  for (const std::int64_t batch : {2, 4, 16}) {
    Scorer scorer(*model_, {1}, {.batch = batch});
    const auto got = scorer.score(requests);
    for (std::size_t i = 0; i < requests.size(); ++i) {
      SCOPED_TRACE(i);
      EXPECT_EQ(static_cast<std::int64_t>(got[i].size()), requests[i].scores());
      expect_near(got[i], expected[i]);
    }
  }
}

TEST_F(Scoring, ForksOfAPrefixAreTheWhole) {
  const Ids prefix = long_text(600);
  const std::vector<Ids> endings{bytes_of("the mill"), bytes_of("a"), bytes_of(" so it goes on")};
  ModelStates states(model_->config(), 3);
  Scorer scorer(*model_, {1}, {.batch = 2});
  ScoringRequest read = request_of(prefix, 600);
  read.tokens.pop_back();
  read.scored_from = 599;
  read.keep = 2;
  EXPECT_TRUE(scorer.score(std::vector{read}, &states).front().empty());
  std::vector<ScoringRequest> forks;
  std::vector<ScoringRequest> whole;
  for (const Ids& ending : endings) {
    ScoringRequest fork = request_of({prefix.back()});
    fork.tokens.insert(fork.tokens.end(), ending.begin(), ending.end());
    fork.start = 2;
    forks.push_back(fork);
    whole.push_back(request_of(prefix, 600));
    whole.back().tokens.insert(whole.back().tokens.end(), ending.begin(), ending.end());
  }
  const auto expected = scorer.score(whole);
  const auto got = scorer.score(forks, &states);
  for (std::size_t i = 0; i < endings.size(); ++i) expect_near(got[i], expected[i]);
  // The state that was started from is still the prefix's.
  expect_near(scorer.score(forks, &states)[2], expected[2]);
}

TEST_F(Scoring, ScoresComeInOrder) {
  std::vector<ScoringRequest> requests{request_of(long_text(1200), 7), request_of(long_text(530), 520)};
  Scorer scorer(*model_, {1}, {.batch = 2});
  std::vector<std::int64_t> next{0, 0};
  scorer.score(requests, [&](std::size_t request, std::int64_t first, std::span<const TokenScore> scores) {
    EXPECT_EQ(first, next[request]);
    next[request] += static_cast<std::int64_t>(scores.size());
  });
  EXPECT_EQ(next[0], requests[0].scores());
  EXPECT_EQ(next[1], requests[1].scores());
}

TEST_F(Scoring, RefusesWhatCannotBeScored) {
  Scorer scorer(*model_, {1});
  const auto score = [&](const ScoringRequest& request) { return scorer.score(std::vector{request}); };
  EXPECT_THROW(static_cast<void>(score(request_of({}))), Error);
  EXPECT_THROW(static_cast<void>(score(request_of({1, 2}, 0))), Error);
  EXPECT_THROW(static_cast<void>(score(request_of({1, 2}, 3))), Error);
  EXPECT_THROW(static_cast<void>(score(request_of({1, 258}))), Error);
  EXPECT_THROW(static_cast<void>(score(request_of({1, -1}))), Error);
  ScoringRequest request = request_of({1, 2});
  request.start = 0;
  EXPECT_THROW(static_cast<void>(score(request)), Error);
  EXPECT_THROW(Scorer(*model_, {1}, {.batch = 0}), Error);
  EXPECT_THROW(Scorer(*model_, {1}, {.batch = 1, .top = 259}), Error);
  model_->parameters()[0] = std::nanf("");  // of the embedding of token 0
  EXPECT_THROW(static_cast<void>(score(request_of({0, 2}))), Error);
}

}  // namespace
}  // namespace qdelta::testing
