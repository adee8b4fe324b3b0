// Generation: what is read in pieces, in batches or after a stop on disk gives the tokens of one plain reading.
#include "infer/generator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <stdexcept>
#include <utility>

#include "cli/cli_testing.h"
#include "generating_case.h"
#include "infer/state_file.h"
#include "mixers.h"

namespace qdelta::testing {
namespace {

using Ids = std::vector<std::int32_t>;

const std::string kText =
    "The river runs past the mill, and the mill has stood there longer than anyone can remember; its wheel has not "
    "turned for years, but the water has not been told, and so it goes on coming down from the hills in the spring.";

class Generating : public ::testing::TestWithParam<std::string> {
 protected:
  [[nodiscard]] Generated generate(const Ids& prompt, const GenerationOptions& options) const {
    ModelStates states(model_->config(), 1, {1});
    return generate(prompt, options, states);
  }
  [[nodiscard]] Generated generate(const Ids& prompt, const GenerationOptions& options, ModelStates& states) const {
    Generator generator(*model_, tokenizer_, states);
    return generator.generate({prompt}, options, {0}).front();
  }

  std::unique_ptr<LanguageModel> model_ = speaking_model(speaking_config(GetParam()));
  ByteTokenizer tokenizer_;
};

TEST_P(Generating, ASplitPromptIsTheWholePrompt) {
  const Ids whole = bytes_of(kText);
  const Generated expected = generate(whole, greedy(24));
  EXPECT_EQ(expected.tokens.size(), 24U);
  EXPECT_EQ(expected.end, EndReason::length);
  const TemporaryFolder folder;
  // Within and at the ends of the chunks that the prompt is worked on in.
  for (const std::size_t at : {std::size_t{1}, std::size_t{63}, std::size_t{64}, std::size_t{100}, whole.size() - 1}) {
    const auto middle = whole.begin() + static_cast<std::ptrdiff_t>(at);
    ModelStates states(model_->config(), 1, {1});
    Generator generator(*model_, tokenizer_, states);
    static_cast<void>(generator.read(Ids(whole.begin(), middle), 0));
    save_state(folder.file("state"), *model_, states, 0, {.tokens = static_cast<std::int64_t>(at)});
    // Into another place of another pool, as another process would.
    ModelStates loaded(model_->config(), 3, {1});
    EXPECT_EQ(load_state(folder.file("state"), *model_, loaded, 1).tokens, static_cast<std::int64_t>(at));
    Generator later(*model_, tokenizer_, loaded);
    const Generated got = later.generate({Ids(middle, whole.end())}, greedy(24), {1}).front();
    EXPECT_EQ(got.tokens, expected.tokens) << "split at " << at;
    EXPECT_EQ(got.text, expected.text);
  }
}

TEST_P(Generating, PromptsLongerThanAReadingAreReadToTheirEnd) {
  std::string text;
  while (text.size() < 1300) text += kText;
  const Ids whole = bytes_of(text);
  ModelStates states(model_->config(), 1, {1});
  Generator generator(*model_, tokenizer_, states);
  const std::vector<float> got = generator.read(whole, 0);
  EXPECT_EQ(generator.speed().prompt_tokens, static_cast<std::int64_t>(whole.size()));
  ModelRunner runner(*model_, {1});
  Tensor logits(DType::f32, {1, 258});
  const std::vector<std::int64_t> offsets{0, static_cast<std::int64_t>(whole.size())};
  runner.last_logits({whole, offsets}, logits.view());
  const std::vector<double> expected = to_doubles(logits.view());
  EXPECT_LT(relative_error(std::vector<double>(got.begin(), got.end()), expected), 1e-4);
}

TEST_P(Generating, SeveralPromptsInOneBatchGiveWhatEachGivesAlone) {
  const std::vector<std::string> texts{"The river", "a", kText, "past the mill"};
  std::vector<Ids> prompts;
  for (const std::string& text : texts) prompts.push_back(bytes_of(text));
  GenerationOptions options = greedy(20);
  ModelStates states(model_->config(), 6, {2});
  Generator generator(*model_, tokenizer_, states);
  std::vector<std::string> pieces(prompts.size());
  const std::vector<Generated> together = generator.generate(
      prompts, options, {5, 0, 3, 1}, [&](std::size_t i, const std::string& piece) { pieces[i] += piece; });
  ASSERT_EQ(together.size(), prompts.size());
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const Generated alone = generate(prompts[i], options);
    EXPECT_EQ(together[i].tokens, alone.tokens) << texts[i];
    EXPECT_EQ(together[i].text, alone.text);
    EXPECT_EQ(pieces[i], alone.text);
  }
}

// Sequences that end early leave the batch; the others must not notice.
TEST_P(Generating, AStopInOneSequenceLeavesTheOthersAlone) {
  const std::vector<Ids> prompts{bytes_of("The river"), bytes_of("past the mill")};
  const Generated first = generate(prompts[0], greedy(20));
  const Generated second = generate(prompts[1], greedy(20));
  GenerationOptions options = greedy(20);
  options.stop = {first.text.substr(4, 6)};
  ModelStates states(model_->config(), 2, {1});
  Generator generator(*model_, tokenizer_, states);
  const std::vector<Generated> got = generator.generate(prompts, options, {0, 1});
  EXPECT_EQ(got[0].end, EndReason::stop_string);
  EXPECT_EQ(got[0].text, first.text.substr(0, first.text.find(options.stop[0])));
  const std::size_t at = second.text.find(options.stop[0]);
  EXPECT_EQ(got[1].text, second.text.substr(0, at));
}

// The state after a generation stands before its last token.
TEST_P(Generating, GoesOnWhereItStopped) {
  const Ids prompt = bytes_of("The river");
  const Generated whole = generate(prompt, greedy(16));
  ModelStates states(model_->config(), 1, {1});
  const Generated first = generate(prompt, greedy(7), states);
  const Generated second = generate({first.tokens.back()}, greedy(9), states);
  EXPECT_EQ(first.text + second.text, whole.text);
}

INSTANTIATE_TEST_SUITE_P(Mixers, Generating,
                         ::testing::ValuesIn(quick() ? std::vector<std::string>{"q_delta", "mamba", kHybrid}
                                                     : all_mixers()),
                         mixer_test_name);

class Ending : public ::testing::Test {
 protected:
  Generated generate(const GenerationOptions& options) {
    ModelStates states(model_->config(), 1, {1});
    Generator generator(*model_, tokenizer_, states);
    streamed_.clear();
    return generator
        .generate({bytes_of(kText)}, options, {0},
                  [&](std::size_t, const std::string& piece) { streamed_.push_back(piece); })
        .front();
  }
  [[nodiscard]] std::string streamed() const {
    std::string all;
    for (const std::string& piece : streamed_) all += piece;
    return all;
  }

  std::unique_ptr<LanguageModel> model_ = speaking_model(speaking_config());
  ByteTokenizer tokenizer_;
  std::vector<std::string> streamed_;
};

TEST_F(Ending, WithTheLength) {
  for (const std::int64_t tokens : {1, 2, 30}) {
    const Generated got = generate(greedy(tokens));
    EXPECT_EQ(got.tokens.size(), static_cast<std::size_t>(tokens));
    EXPECT_EQ(got.text.size(), static_cast<std::size_t>(tokens));
    EXPECT_EQ(got.end, EndReason::length);
    EXPECT_EQ(streamed(), got.text);
  }
}

TEST_F(Ending, AStopStringIsLeftOutAndNoPartOfItIsShown) {
  const std::string whole = generate(greedy(40)).text;
  for (const std::size_t at : {0U, 1U, 17U, 35U}) {
    GenerationOptions options = greedy(40);
    options.stop = {"0", whole.substr(at, 5)};
    const std::string expected = whole.substr(0, whole.find(options.stop[1]));
    const Generated got = generate(options);
    EXPECT_EQ(got.end, EndReason::stop_string);
    EXPECT_EQ(got.text, expected);
    EXPECT_EQ(streamed(), expected);
    EXPECT_EQ(got.tokens.size(), expected.size() + 5);  // they were generated all the same
  }
}

TEST_F(Ending, WhatOnlyBeganAStopStringIsShown) {
  const std::string whole = generate(greedy(20)).text;
  GenerationOptions options = greedy(20);
  options.stop = {whole.substr(15) + "!", whole.substr(3, 4) + "!"};
  const Generated got = generate(options);
  EXPECT_EQ(got.end, EndReason::length);
  EXPECT_EQ(got.text, whole);
  EXPECT_EQ(streamed(), whole);
}

TEST_F(Ending, AnEmptyStopStringStopsNothing) {
  GenerationOptions options = greedy(5);
  options.stop = {""};
  EXPECT_EQ(generate(options).text, generate(greedy(5)).text);
}

TEST_F(Ending, TheEndOfTextEndsIt) {
  // The end of text gets the row of the letter that comes third, a little larger.
  const Generated whole = generate(greedy(8));
  const Slot head = model_->layout().head;
  const auto width = static_cast<std::size_t>(model_->config().hidden_size);
  const auto row = [&](std::int32_t id) {
    return model_->parameters().subspan(static_cast<std::size_t>(head.offset) + static_cast<std::size_t>(id) * width,
                                        width);
  };
  const std::int32_t letter = whole.tokens[2];
  const auto first = static_cast<std::size_t>(std::ranges::find(whole.tokens, letter) - whole.tokens.begin());
  const std::int32_t eos = tokenizer_.eos().value();
  for (std::size_t i = 0; i < width; ++i) row(eos)[i] = row(letter)[i] * 1.01F;
  const Generated got = generate(greedy(8));
  EXPECT_EQ(got.end, EndReason::eos);
  EXPECT_EQ(got.text, whole.text.substr(0, first));
  EXPECT_EQ(got.tokens.back(), eos);
  GenerationOptions on = greedy(8);
  on.stop_at_eos = false;
  EXPECT_EQ(generate(on).tokens.size(), 8U);
}

TEST_F(Ending, TheListenerMayStopIt) {
  ModelStates states(model_->config(), 1, {1});
  Generator generator(*model_, tokenizer_, states);
  int pieces = 0;
  EXPECT_THROW(generator.generate({bytes_of("a")}, greedy(20), {0},
                                  [&](std::size_t, const std::string&) {
                                    if (++pieces == 3) throw std::runtime_error("enough");
                                  }),
               std::runtime_error);
  EXPECT_EQ(pieces, 3);
}

TEST_F(Ending, TheSeedDecides) {
  GenerationOptions options = greedy(30);
  options.sampling.temperature = 1.5F;
  options.sampling.seed = 7;
  const std::string seven = generate(options).text;
  EXPECT_EQ(generate(options).text, seven);
  options.sampling.seed = 8;
  EXPECT_NE(generate(options).text, seven);
}

TEST_F(Ending, OneOfOneIsGreedy) {
  GenerationOptions options = greedy(30);
  const std::string expected = generate(options).text;
  options.sampling.temperature = 2;
  options.sampling.top_k = 1;
  EXPECT_EQ(generate(options).text, expected);
  options.sampling.top_k = 0;
  options.sampling.top_p = 1e-6F;
  EXPECT_EQ(generate(options).text, expected);
}

// The same by hand: the logits of everything that was read or said, divided or multiplied.
TEST_F(Ending, ThePenaltyAppliesToThePromptAndToWhatWasSaid) {
  GenerationOptions options = greedy(26);
  const Generated plain = generate(options);
  options.sampling.repetition_penalty = 1.5F;
  const Generated got = generate(options);
  EXPECT_NE(got.tokens, plain.tokens);
  ModelStates states(model_->config(), 1, {1});
  Generator generator(*model_, tokenizer_, states);
  Ids said;
  std::vector<float> logits = generator.read(bytes_of(kText), 0);
  while (said.size() < 26) {
    Ids seen = bytes_of(kText);
    seen.insert(seen.end(), said.begin(), said.end());
    for (const std::int32_t id : std::set<std::int32_t>(seen.begin(), seen.end())) {
      float& logit = logits[static_cast<std::size_t>(id)];
      logit = logit > 0 ? logit / 1.5F : logit * 1.5F;
    }
    said.push_back(static_cast<std::int32_t>(std::ranges::max_element(logits) - logits.begin()));
    logits = generator.read(Ids{said.back()}, 0);
  }
  EXPECT_EQ(got.tokens, said);
}

// From the prompt's logits, and from those of a step.
TEST_F(Ending, RefusesWhatIsNoNumber) {
  const std::int32_t first = generate(greedy(1)).tokens[0];
  const auto width = static_cast<std::size_t>(model_->config().hidden_size);
  const auto embedding = [&](std::int32_t id) -> float& {
    return model_->parameters()[static_cast<std::size_t>(model_->layout().embeddings.offset) +
                                static_cast<std::size_t>(id) * width];
  };
  for (const float temperature : {0.0F, 1.0F}) {
    GenerationOptions options = greedy(5);
    options.sampling.temperature = temperature;
    for (const std::int32_t token : {first, std::int32_t{'T'}}) {
      if (temperature > 0 && token == first) continue;  // what is drawn there is another token
      const float before = std::exchange(embedding(token), NAN);
      expect_error(Status::corrupt, {"no number", "not finite"}, [&] { return generate(options); });
      embedding(token) = before;
    }
  }
}

// The decoder is left empty by one that was stopped.
TEST_F(Ending, ASlotIsFreeAfterwards) {
  ModelStates states(model_->config(), 1, {1});
  Generator generator(*model_, tokenizer_, states);
  EXPECT_THROW(generator.generate({bytes_of("a")}, greedy(20), {0},
                                  [](std::size_t, const std::string&) { throw std::runtime_error("enough"); }),
               std::runtime_error);
  states.clear(0);
  EXPECT_EQ(generator.generate({bytes_of(kText)}, greedy(9), {0})[0].text, generate(greedy(9)).text);
}

TEST_F(Ending, WhatCannotBeIsRefused) {
  ModelStates states(model_->config(), 1, {1});
  Generator generator(*model_, tokenizer_, states);
  expect_error(Status::invalid_argument, {"no tokens"}, [&] { return generator.generate({Ids{}}, greedy(1), {0}); });
  expect_error(Status::invalid_argument, {"max-tokens", "0"},
               [&] { return generator.generate({Ids{1}}, greedy(0), {0}); });
  expect_error(Status::invalid_argument, {"2 prompts", "1 states"}, [&] {
    return generator.generate({Ids{1}, Ids{2}}, greedy(1), {0});
  });
  GenerationOptions options = greedy(1);
  options.sampling.top_p = 0;
  expect_error(Status::invalid_argument, {"top-p"}, [&] { return generator.generate({Ids{1}}, options, {0}); });
}

}  // namespace
}  // namespace qdelta::testing
