// Prompts, and how the text behind them reads.
#include "infer/prompt.h"

#include <gtest/gtest.h>

namespace qdelta {
namespace {

std::string fixture(const std::string& name) { return QDELTA_GOLDEN_DIR "/../data/fixtures/" + name; }

TEST(Prompt, BeginsWithOneBeginOfTextToken) {
  const auto tokenizer = load_tokenizer("bytes");
  EXPECT_EQ(encode_prompt(*tokenizer, "a", true), (std::vector<std::int32_t>{256, 'a'}));
  EXPECT_EQ(encode_prompt(*tokenizer, "a", false), (std::vector<std::int32_t>{'a'}));
  EXPECT_EQ(encode_prompt(*tokenizer, "", true), (std::vector<std::int32_t>{256}));
}

// Wherever a text is cut between tokens, the part behind reads as it does in the whole.
TEST(Prompt, WhatFollowsKeepsItsSpace) {
  for (const char* name : {"bpe.model", "unigram.model", "llama2_style.json", "gpt2_style.json"}) {
    const auto tokenizer = load_tokenizer(fixture(name));
    const std::vector<std::int32_t> ids = tokenizer->encode("the quick brown fox and the lazy dog");
    ASSERT_GT(ids.size(), 4U);
    const std::string whole = tokenizer->decode(ids);
    for (std::size_t cut = 1; cut < ids.size(); ++cut) {
      const std::span<const std::int32_t> prompt = std::span(ids).first(cut);
      TokenStream stream = stream_behind(*tokenizer, prompt);
      std::string text = tokenizer->decode(prompt);
      for (const std::int32_t id : std::span(ids).subspan(cut)) text += stream.push(id);
      EXPECT_EQ(text + stream.finish(), whole) << name << ", cut at " << cut;
    }
  }
}

}  // namespace
}  // namespace qdelta
