// Decoding in batches: sequences that come and go, read and step together, get what they get alone.
#include "infer/decoder.h"

#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <map>

#include "generating_case.h"
#include "testing.h"

namespace qdelta::testing {
namespace {

using Ids = std::vector<std::int32_t>;

// All that a sequence has given out.
struct Result {
  std::vector<ScoredToken> prompt, generated;
  EndReason end = EndReason::none;

  void take(Sequence& sequence) {
    for (const SequenceUpdate& update : sequence.take_updates()) {
      prompt.insert(prompt.end(), update.prompt.begin(), update.prompt.end());
      generated.insert(generated.end(), update.generated.begin(), update.generated.end());
      end = update.end;
    }
  }
};

void expect_near(const std::vector<ScoredToken>& got, const std::vector<ScoredToken>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].token, expected[i].token);
    ASSERT_EQ(got[i].log_probability.has_value(), expected[i].log_probability.has_value());
    if (got[i].log_probability) {
      EXPECT_NEAR(*got[i].log_probability, *expected[i].log_probability, 2e-5);
    }
    ASSERT_EQ(got[i].top.size(), expected[i].top.size());
    for (std::size_t k = 0; k < got[i].top.size(); ++k) {
      EXPECT_NEAR(got[i].top[k].log_probability, expected[i].top[k].log_probability, 2e-5);
    }
  }
}

// To the last bit.
void expect_equal(const std::vector<ScoredToken>& got, const std::vector<ScoredToken>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].token, expected[i].token);
    EXPECT_EQ(got[i].log_probability, expected[i].log_probability);
    ASSERT_EQ(got[i].top.size(), expected[i].top.size());
    for (std::size_t k = 0; k < got[i].top.size(); ++k) {
      EXPECT_EQ(got[i].top[k].log_probability, expected[i].top[k].log_probability);
    }
  }
}

class Decoding : public ::testing::Test {
 protected:
  [[nodiscard]] Sequence sequence(const std::string& prompt, const GenerationOptions& options) const {
    return {tokenizer_, bytes_of(prompt), options};
  }
  [[nodiscard]] Result alone(const std::string& prompt, const GenerationOptions& options) const {
    ModelStates states(model_->config(), 1, {1});
    Decoder decoder(*model_, weights_, states);
    Sequence one = sequence(prompt, options);
    decoder.add(0, one);
    const std::vector<std::int64_t> slots{0};
    while (one.reading()) decoder.read(slots);
    while (decoder.step() > 0) {
    }
    Result result;
    result.take(one);
    return result;
  }

  std::unique_ptr<LanguageModel> model_ = speaking_model(speaking_config());
  std::shared_ptr<const DeviceWeights> weights_ = std::make_shared<DeviceWeights>(*model_, Device{1});
  ByteTokenizer tokenizer_;
};

// One reads for all that have its prompt, in several pieces, scored or not; each draws for itself.
TEST_F(Decoding, WhoFollowsGetsWhatItGetsAlone) {
  for (const GenerationOptions& options :
       {GenerationOptions{.sampling = {.temperature = 1, .seed = 4}, .max_tokens = 12, .logprobs = 2},
        GenerationOptions{.sampling = {.temperature = 1}, .max_tokens = 5, .logprobs = 1, .score_prompt = true},
        GenerationOptions{.max_tokens = 0, .logprobs = 3, .score_prompt = true}}) {
    const std::string prompt(700, 'q');
    ModelStates states(model_->config(), 4, {1});
    Decoder decoder(*model_, weights_, states);
    std::deque<Sequence> sequences;
    for (std::int64_t slot = 0; slot < 4; ++slot) {
      GenerationOptions own = options;
      own.stream = static_cast<std::uint64_t>(slot);
      decoder.add(slot, sequences.emplace_back(sequence(prompt, own)));
      if (slot > 0) decoder.follow(slot, 0);
    }
    const std::vector<std::int64_t> leader{0};
    while (sequences.front().reading()) {
      EXPECT_TRUE(sequences[2].reading());
      decoder.read(leader);
    }
    while (decoder.step() > 0) {
    }
    for (Sequence& each : sequences) {
      Result result;
      result.take(each);
      const Result expected = alone(prompt, each.options());
      expect_equal(result.prompt, expected.prompt);
      expect_equal(result.generated, expected.generated);
      EXPECT_EQ(result.end, expected.end);
    }
  }
  ModelStates states(model_->config(), 2, {1});
  Decoder decoder(*model_, weights_, states);
  Sequence one = sequence("one", {}), other = sequence("other", {});
  decoder.add(0, one);
  decoder.add(1, other);
  EXPECT_THROW(decoder.follow(1, 0), Error);
}

// More sequences than slots, more slots than rows of a step, each with options of its own.
TEST_F(Decoding, SequencesThatComeAndGoGetWhatTheyGetAlone) {
  struct Case {
    std::string prompt;
    GenerationOptions options;
  };
  const std::string longer(1100, 'q');
  const std::vector<Case> cases{
      {"The river", {.sampling = {.temperature = 0}, .max_tokens = 20}},
      {"a", {.sampling = {.temperature = 1.2F, .seed = 3}, .stream = 1, .max_tokens = 9, .logprobs = 3}},
      {longer, {.sampling = {.temperature = 0.9F, .top_k = 5}, .max_tokens = 12, .logprobs = 0, .score_prompt = true}},
      {"past the mill", {.max_tokens = 0, .logprobs = 2, .score_prompt = true}},
      {"x", {.sampling = {.temperature = 1, .top_p = 0.8F, .repetition_penalty = 1.5F}, .max_tokens = 25}},
      {"y", {.max_tokens = 0}},
      {"once there was", {.sampling = {.temperature = 1}, .max_tokens = 30, .stop = {"e", "ab"}}},
      {"two", {.sampling = {.min_p = 0.1F}, .max_tokens = 1, .logprobs = 1}}};
  ModelStates states(model_->config(), 5, {1});
  Decoder decoder(*model_, weights_, states, {.max_rows = 3});
  std::deque<Sequence> sequences;
  std::vector<Result> results(cases.size());
  std::map<std::int64_t, std::size_t> in_slot;
  for (std::size_t next = 0; next < cases.size() || !in_slot.empty();) {
    for (std::int64_t slot = 0; slot < 5; ++slot) {
      if (in_slot.contains(slot) && decoder.at(slot)->done()) {
        decoder.remove(slot);
        in_slot.erase(slot);
      }
      if (in_slot.contains(slot) || next == cases.size()) continue;
      states.clear(slot);
      decoder.add(slot, sequences.emplace_back(sequence(cases[next].prompt, cases[next].options)));
      in_slot[slot] = next++;
    }
    // Neighbours that have something to read.
    std::vector<std::int64_t> reading;
    for (std::int64_t slot = 0; slot < 5; ++slot) {
      const bool reads = in_slot.contains(slot) && decoder.at(slot)->reading();
      if (!reads && !reading.empty()) break;
      if (reads) reading.push_back(slot);
    }
    decoder.read(reading);
    decoder.step();
    for (const auto& [slot, index] : in_slot) results[index].take(*decoder.at(slot));
  }
  for (std::size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(cases[i].prompt.substr(0, 20));
    const Result expected = alone(cases[i].prompt, cases[i].options);
    EXPECT_EQ(results[i].end, expected.end);
    EXPECT_NE(results[i].end, EndReason::none);
    expect_near(results[i].prompt, expected.prompt);
    expect_near(results[i].generated, expected.generated);
  }
}

// All scores are the softmax of the model's logits, in double.
TEST_F(Decoding, ScoresAreTheSoftmaxOfTheLogits) {
  const std::string prompt = "The river runs";
  const Result got =
      alone(prompt, {.sampling = {.temperature = 1}, .max_tokens = 8, .logprobs = 258, .score_prompt = true});
  Ids ids = bytes_of(prompt);
  const std::size_t from = ids.size();
  for (const ScoredToken& token : got.generated) ids.push_back(token.token);
  ModelRunner runner(*model_, {1});
  Tensor logits(DType::f32, {static_cast<std::int64_t>(ids.size()), 258});
  runner.logits({ids, std::vector<std::int64_t>{0, static_cast<std::int64_t>(ids.size())}}, logits.view());
  ASSERT_EQ(got.prompt.size(), from);
  EXPECT_FALSE(got.prompt[0].log_probability.has_value());
  for (std::size_t i = 1; i < ids.size(); ++i) {
    const ScoredToken& scored = i < from ? got.prompt[i] : got.generated[i - from];
    const std::span<const float> row = logits.as<float>().subspan((i - 1) * 258, 258);
    double sum = 0;
    for (const float value : row) sum += std::exp(static_cast<double>(value));
    ASSERT_TRUE(scored.log_probability.has_value());
    EXPECT_EQ(scored.token, ids[i]);
    const auto expected = [&](std::int32_t id) {
      return static_cast<double>(row[static_cast<std::size_t>(id)]) - std::log(sum);
    };
    EXPECT_NEAR(*scored.log_probability, expected(ids[i]), 2e-5);
    ASSERT_EQ(scored.top.size(), 258U);
    for (std::size_t k = 0; k < 258; ++k) {
      EXPECT_NEAR(scored.top[k].log_probability, expected(scored.top[k].token), 2e-5);
      if (k > 0) {
        EXPECT_LE(scored.top[k].log_probability, scored.top[k - 1].log_probability);
      }
      // Its own number, exactly, where it is the token.
      if (scored.top[k].token == ids[i]) {
        EXPECT_EQ(scored.top[k].log_probability, *scored.log_probability);
      }
    }
  }
}

// One that has come to its end on another decoder goes on here: its random numbers and the tokens seen with it.
TEST_F(Decoding, ASequenceGoesOnInAnotherDecoder) {
  const GenerationOptions options{.sampling = {.temperature = 1.1F, .repetition_penalty = 1.3F, .seed = 4},
                                  .max_tokens = 24};
  const Result expected = alone("The river", options);
  ModelStates states(model_->config(), 2, {1});
  Sequence moved = sequence("The river", options);
  const std::vector<std::int64_t> slots{1};
  {
    Decoder first(*model_, weights_, states);
    first.add(1, moved);
    first.read(slots);
    for (int i = 0; i < 7; ++i) first.step();
  }
  Decoder second(*model_, weights_, states);
  second.add(1, moved);
  while (second.step() > 0) {
  }
  Result result;
  result.take(moved);
  expect_near(result.generated, expected.generated);
}

TEST_F(Decoding, RefusesWhatCannotBe) {
  ModelStates states(model_->config(), 2, {1});
  Decoder decoder(*model_, weights_, states);
  Sequence one = sequence("a", {}), other = sequence("b", {});
  const auto expect = [](const std::string& words, const auto& action) {
    expect_error(Status::invalid_argument, {words}, [&] {
      action();
      return 0;
    });
  };
  expect("no slot 2", [&] { decoder.add(2, one); });
  decoder.add(0, one);
  expect("slot 0 has a sequence", [&] { decoder.add(0, other); });
  expect("no prompt to read", [&] { decoder.read(std::vector<std::int64_t>{1}); });
  expect("nothing to read", [&] { decoder.read_tokens({}, 1); });
  Sequence wrong = sequence("a", {.sampling = {.top_p = 0}});
  expect("top-p", [&] { decoder.add(1, wrong); });
  EXPECT_EQ(decoder.at(1), nullptr);
}

}  // namespace
}  // namespace qdelta::testing
