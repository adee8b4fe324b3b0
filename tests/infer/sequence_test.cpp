// A sequence by itself: pieces of its prompt, tokens, text, scores and ends, without a model.
#include "infer/sequence.h"

#include <gtest/gtest.h>

#include <cmath>

#include "data/byte_tokenizer.h"
#include "infer/sequence_text.h"
#include "testing.h"

namespace qdelta::testing {
namespace {

using Ids = std::vector<std::int32_t>;

const ByteTokenizer kTokenizer;

TokenScore score_of(std::int32_t token, float log_probability) {
  return {.token = {token, log_probability}, .best = {'e', -0.5F}, .top = {{'e', -0.5F}, {'t', -1.0F}, {'a', -2.0F}}};
}

// Reads the whole prompt; every token that is scored gets minus its position.
void read_prompt(Sequence& sequence, std::vector<PromptPiece>* pieces = nullptr) {
  while (sequence.reading()) {
    const PromptPiece piece = sequence.next_piece(3, kPromptPiece);
    std::vector<TokenScore> scores;
    for (std::size_t i = piece.score_begin; i < piece.score_end; ++i) {
      scores.push_back(score_of(piece.prompt[i + 1], -static_cast<float>(i + 1)));
    }
    sequence.read(piece, scores);
    if (pieces != nullptr) pieces->push_back(piece);
  }
}

// A sequence with its text, as whoever owns both keeps them.
struct Told {
  Sequence sequence;
  SequenceText text;

  explicit Told(const GenerationOptions& options)
      : sequence(kTokenizer, {'a'}, options),
        text(kTokenizer, sequence.prompt(), std::make_shared<StopStrings>(options.stop)) {
    read_prompt(sequence);
  }
  std::string take() {
    std::string out;
    for (SequenceUpdate& update : sequence.take_updates()) {
      out += text.take(update);
      if (text.stopped()) sequence.stop();
    }
    return out;
  }
};

TEST(Sequence, APromptIsReadInPiecesOfItsOwn) {
  for (const std::size_t size : {std::size_t{1}, kPromptPiece, kPromptPiece + 1, 2 * kPromptPiece + 7}) {
    for (const std::int64_t max_tokens : {0, 5}) {
      for (const bool score : {false, true}) {
        Sequence sequence(kTokenizer, Ids(size, 'x'), {.max_tokens = max_tokens, .logprobs = 1, .score_prompt = score});
        std::vector<PromptPiece> pieces;
        read_prompt(sequence, &pieces);
        // The last token is read only where something follows it; nothing of the prompt does.
        const std::size_t read = max_tokens == 0 ? size - 1 : size;
        std::size_t at = 0;
        for (const PromptPiece& piece : pieces) {
          EXPECT_EQ(piece.begin, at);
          EXPECT_EQ(piece.end, std::min(at + kPromptPiece, read));
          EXPECT_EQ(piece.score_begin, at);
          EXPECT_EQ(piece.score_end, score ? std::min(piece.end, size - 1) : at);
          EXPECT_EQ(piece.slot, 3);
          at = piece.end;
        }
        EXPECT_EQ(at, read);
        EXPECT_EQ(sequence.generating(), max_tokens > 0);
        EXPECT_EQ(sequence.done(), max_tokens == 0);
        const std::vector<SequenceUpdate> updates = sequence.take_updates();
        ASSERT_EQ(updates.size(), score || max_tokens == 0 ? 1U : 0U);
        if (updates.empty()) continue;
        EXPECT_EQ(updates[0].end, max_tokens == 0 ? EndReason::length : EndReason::none);
        ASSERT_EQ(updates[0].prompt.size(), score ? size : 0U);
        for (std::size_t i = 0; i < updates[0].prompt.size(); ++i) {
          EXPECT_EQ(updates[0].prompt[i].token, 'x');
          EXPECT_EQ(updates[0].prompt[i].log_probability.has_value(), i > 0);
          if (i > 0) {
            EXPECT_EQ(*updates[0].prompt[i].log_probability, -static_cast<float>(i));
          }
        }
      }
    }
  }
}

TEST(Sequence, TokensBecomeTextUntilTheLength) {
  Told told({.max_tokens = 4});
  Sequence& sequence = told.sequence;
  // A character of three bytes is shown when it is whole.
  std::vector<std::string> texts;
  for (const std::int32_t token : {0xe2, 0x82, 0xac, static_cast<int>('!')}) {
    EXPECT_TRUE(sequence.generating());
    sequence.append(token);
    texts.push_back(told.take());
  }
  EXPECT_EQ(texts, (std::vector<std::string>{"", "", "\u20ac", "!"}));
  EXPECT_EQ(sequence.end(), EndReason::length);
  EXPECT_EQ(sequence.generated().size(), 4U);
  EXPECT_EQ(sequence.tokens().size(), 5U);
  EXPECT_TRUE(sequence.take_updates().empty());
}

TEST(Sequence, EndsAtTheEndOfTextWithWhatWasHeldBack) {
  const std::int32_t eos = kTokenizer.eos().value();
  for (const bool stops : {true, false}) {
    Told told({.max_tokens = 9, .stop = {"xyz"}, .stop_at_eos = stops});
    for (const char c : std::string("xy")) told.sequence.append(c);
    EXPECT_EQ(told.take(), "");
    told.sequence.append(eos);
    EXPECT_EQ(told.sequence.done(), stops);
    EXPECT_EQ(told.sequence.end(), stops ? EndReason::eos : EndReason::none);
    EXPECT_EQ(told.take(), stops ? "xy" : "");
  }
}

TEST(Sequence, EndsAtAStopToken) {
  Told told({.max_tokens = 9, .stop_tokens = {'q', 'z'}});
  for (const char c : std::string("xyz")) told.sequence.append(c);
  EXPECT_EQ(told.sequence.end(), EndReason::stop_token);
  EXPECT_EQ(told.take(), "xy");
}

TEST(Sequence, EndsAtAStopString) {
  Told told({.max_tokens = 9, .stop = {"yz"}});
  for (const char c : std::string("xyz")) told.sequence.append(c);
  EXPECT_EQ(told.take(), "x");
  EXPECT_EQ(told.sequence.end(), EndReason::stop_string);
  EXPECT_EQ(told.sequence.generated().size(), 3U);
}

TEST(Sequence, ScoresAreGivenAsFarAsAskedFor) {
  for (const std::int64_t logprobs : {0, 1, 2, 5}) {
    Sequence sequence(kTokenizer, {'a'}, {.max_tokens = 2, .logprobs = logprobs});
    read_prompt(sequence);
    const TokenScore score = score_of('t', -1.0F);
    sequence.append('t', &score);
    sequence.append('u');
    const std::vector<SequenceUpdate> updates = sequence.take_updates();
    ASSERT_EQ(updates.size(), 2U);
    const ScoredToken& scored = updates[0].generated.at(0);
    EXPECT_EQ(scored.log_probability, -1.0F);
    ASSERT_EQ(scored.top.size(), static_cast<std::size_t>(std::min<std::int64_t>(logprobs, 3)));
    if (logprobs > 0) {
      EXPECT_EQ(scored.top[0].token, 'e');
    }
    EXPECT_FALSE(updates[1].generated.at(0).log_probability.has_value());
  }
  // Where only the most likely one is known.
  Sequence sequence(kTokenizer, {'a'}, {.max_tokens = 2, .logprobs = 1});
  read_prompt(sequence);
  const TokenScore score{.token = {'t', -1.0F}, .best = {'e', -0.5F}, .top = {}};
  sequence.append('t', &score);
  const ScoredToken scored = sequence.take_updates().at(0).generated.at(0);
  ASSERT_EQ(scored.top.size(), 1U);
  EXPECT_EQ(scored.top[0].token, 'e');
}

TEST(Sequence, WhatIsNotFiniteEndsIt) {
  Sequence read(kTokenizer, {'a', 'b', 'c'}, {.max_tokens = 2, .logprobs = 1, .score_prompt = true});
  read.read(read.next_piece(0, kPromptPiece), std::vector<TokenScore>{score_of('b', -1.0F), score_of('c', NAN)});
  EXPECT_EQ(read.end(), EndReason::not_finite);
  Sequence generated(kTokenizer, {'a'}, {.max_tokens = 2});
  read_prompt(generated);
  generated.fail();
  EXPECT_EQ(generated.take_updates().at(0).end, EndReason::not_finite);
}

TEST(Sequence, RefusesAnEmptyPrompt) {
  expect_error(Status::invalid_argument, {"no tokens"}, [] { return Sequence(kTokenizer, {}, {}).done(); });
}

}  // namespace
}  // namespace qdelta::testing
