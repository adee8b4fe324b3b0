// The models of tokenizer.json besides byte-pair encoding, where the fixtures do not reach: what files may leave out or
// get wrong, and how numbers are read.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "data/byte_trie.h"
#include "data/json_tokenizer.h"
#include "data/tokenizer.h"
#include "data/unigram_model.h"
#include "data_testing.h"

namespace qdelta {
namespace {

using Json = nlohmann::json;
using testing::expect_error;
using Ids = std::vector<std::int32_t>;

std::unique_ptr<Tokenizer> with_model(const Json& model) {
  return make_json_tokenizer(Json{{"added_tokens", Json::array()}, {"model", model}}.dump(), "label", {}, {});
}

Json word_piece() {
  return {{"type", "WordPiece"},
          {"unk_token", "?"},
          {"continuing_subword_prefix", "##"},
          {"max_input_chars_per_word", 5},
          {"vocab", {{"?", 0}, {"a", 1}, {"##a", 2}, {"##ab", 3}, {"##", 4}, {"\xc3\xa9", 5}}}};
}
Json unigram() {
  return Json::parse(
      R"({"type": "Unigram", "unk_id": 0, "vocab": [["?", 0], ["a", -1.5], ["b", -1], ["ab", -2.5], ["aa", -4]]})");
}
Json word_level() { return {{"type", "WordLevel"}, {"unk_token", "?"}, {"vocab", {{"?", 0}, {"a b", 1}}}}; }

TEST(ByteTrie, FollowsTexts) {
  ByteTrie trie;
  trie.add("ab", 1);
  trie.add("abc", 2);
  trie.add("\xff", 3);
  trie.add("aa", 4);
  trie.add("ab", 5);
  EXPECT_EQ(trie.value(trie.follow(ByteTrie::kRoot, "a")), ByteTrie::kNone);
  EXPECT_EQ(trie.value(trie.follow(ByteTrie::kRoot, "ab")), 5);
  EXPECT_EQ(trie.value(trie.follow(ByteTrie::kRoot, "abc")), 2);
  EXPECT_EQ(trie.value(trie.follow(ByteTrie::kRoot, "\xff")), 3);
  EXPECT_EQ(trie.value(trie.follow(ByteTrie::kRoot, "aa")), 4);
  EXPECT_EQ(trie.follow(ByteTrie::kRoot, "ac"), ByteTrie::kNone);
  EXPECT_EQ(trie.follow(ByteTrie::kRoot, "xyz"), ByteTrie::kNone);
}

TEST(WordPiece, TheLongestFirst) {
  const auto tokenizer = with_model(word_piece());
  EXPECT_EQ(tokenizer->encode("aab"), (Ids{1, 3}));
  EXPECT_EQ(tokenizer->encode("aaa"), (Ids{1, 2, 2}));
  EXPECT_EQ(tokenizer->encode("aaab"), (Ids{1, 2, 3}));
  EXPECT_EQ(tokenizer->encode("ab"), Ids{0});  // nothing for ##b: the prefix alone takes no character
  EXPECT_EQ(tokenizer->encode("aaaaa"), (Ids{1, 2, 2, 2, 2}));
  EXPECT_EQ(tokenizer->encode("aaaaaa"), Ids{0});  // longer than five characters
  EXPECT_EQ(tokenizer->encode("\xc3\xa9"
                              "aaaa"),
            (Ids{5, 2, 2, 2, 2}));  // five characters, six bytes
  EXPECT_EQ(tokenizer->name(), "WordPiece label");
}

TEST(WordLevel, AWholeTextIsAWordWithoutPreTokenizer) {
  EXPECT_EQ(with_model(word_level())->encode("a b"), Ids{1});
  EXPECT_EQ(with_model(word_level())->encode("a"), Ids{0});
}

// As in the reference library, it is no error before a word needs it.
TEST(WordModels, WithoutTheUnknownToken) {
  for (Json model : {word_piece(), word_level()}) {
    model["unk_token"] = "gone";
    const auto tokenizer = with_model(model);
    EXPECT_EQ(tokenizer->encode(model["type"] == "WordPiece" ? "a" : "a b"), Ids{1});
    expect_error(Status::unsupported, {"\"xyz\"", "\"gone\""}, [&] { return tokenizer->encode("xyz"); });
  }
  Json model = unigram();
  model.erase("unk_id");
  EXPECT_EQ(with_model(model)->encode("ab"), Ids{3});
  expect_error(Status::unsupported, {"\"x\"", "no unknown token"}, [&] { return with_model(model)->encode("axb"); });
}

TEST(Unigram, TheLargestSum) {
  const auto tokenizer = with_model(unigram());
  EXPECT_EQ(tokenizer->encode("ab"), Ids{3});  // as much as a and b: the first that is found
  EXPECT_EQ(tokenizer->encode("ba"), (Ids{2, 1}));
  EXPECT_EQ(tokenizer->encode("aa"), (Ids{1, 1}));
  EXPECT_EQ(tokenizer->encode("axyb"), (Ids{1, 0, 2}));  // a run of what is unknown is one
  EXPECT_EQ(tokenizer->encode("x?y"), (Ids{0}));         // the unknown token's own text belongs to it
  EXPECT_EQ(tokenizer->encode("a?b"), (Ids{1, 0, 2}));
  Json model = unigram();
  model["byte_fallback"] = true;
  EXPECT_EQ(with_model(model)->encode("axb"), (Ids{1, 0, 2}));  // there is no token for the byte
  model["vocab"].push_back(Json::array({"<0x78>", -9}));
  EXPECT_EQ(with_model(model)->encode("axxb"), (Ids{1, 5, 5, 2}));
  EXPECT_EQ(with_model(model)->encode("axyb"), (Ids{1, 0, 2}));
}

// A long run of one character has many ways to be cut whose sums differ in the last bit only. The expected ids are the
// reference library's, which does not read these scores as the nearest double.
TEST(Unigram, ScoresAreReadAsTheLibraryReadsThem) {
  EXPECT_EQ(twice_rounded(-3.7467351734612158), -3.746735173461216);
  EXPECT_EQ(twice_rounded(-7.7900335227124184), -7.790033522712419);
  EXPECT_EQ(twice_rounded(-13.718556948949287), -13.718556948949288);
  for (const double same : {0.0, -1.5, -2.0, 12345.678, -3.25e-5, 1e22, 1e-300}) EXPECT_EQ(twice_rounded(same), same);
}

TEST(TokenModels, WhatIsWrongIsNamed) {
  const auto refuse = [](Status status, std::vector<std::string> pieces, Json model, const char* key,
                         const Json& value) {
    model[key] = value;
    pieces.emplace_back("label: model");
    expect_error(status, pieces, [&] { return with_model(model); });
  };
  refuse(Status::corrupt, {"unk_id", "whole number"}, unigram(), "unk_id", -1);
  refuse(Status::corrupt, {"unknown token", "id 5"}, unigram(), "unk_id", 5);
  refuse(Status::corrupt, {"vocab", "array"}, unigram(), "vocab", Json::object());
  refuse(Status::corrupt, {"vocab", "token 1"}, unigram(), "vocab", Json::parse(R"([["a", 0], ["b"]])"));
  refuse(Status::corrupt, {"vocab", "token 0"}, unigram(), "vocab", Json::parse(R"([["a", "0"]])"));
  refuse(Status::unsupported, {"\"alpha\""}, unigram(), "alpha", 0.1);
  refuse(Status::corrupt, {"max_input_chars_per_word"}, word_piece(), "max_input_chars_per_word", -1);
  refuse(Status::corrupt, {"same id"}, word_piece(), "vocab", {{"a", 1}, {"b", 1}});
  refuse(Status::corrupt, {"unk_token", "string"}, word_level(), "unk_token", nullptr);
  Json incomplete = word_piece();
  incomplete.erase("continuing_subword_prefix");
  expect_error(Status::corrupt, {"continuing_subword_prefix is missing"}, [&] { return with_model(incomplete); });
}

// Old files do not say what their model is.
TEST(TokenModels, WithoutAType) {
  for (Json model : {word_piece(), word_level(), unigram()}) {
    const auto typed = with_model(model);
    model.erase("type");
    const auto untyped = with_model(model);
    EXPECT_EQ(untyped->name(), typed->name());
    for (const char* text : {"a", "ab", "a b", "aab", "xyz"}) EXPECT_EQ(untyped->encode(text), typed->encode(text));
  }
}

TEST(Bpe, Affixes) {
  Json model = {{"type", "BPE"},
                {"continuing_subword_prefix", "##"},
                {"end_of_word_suffix", "</w>"},
                {"vocab", {{"a", 0}, {"##b", 1}, {"##b</w>", 2}, {"a</w>", 3}, {"ab", 4}, {"abb</w>", 5}}},
                {"merges", Json::array({"a ##b", "ab ##b</w>"})}};
  const auto tokenizer = with_model(model);
  EXPECT_EQ(tokenizer->encode("a"), Ids{3});
  EXPECT_EQ(tokenizer->encode("ab"), (Ids{0, 2}));
  EXPECT_EQ(tokenizer->encode("abb"), Ids{5});
  EXPECT_EQ(tokenizer->encode("abbb"), (Ids{4, 1, 2}));
  model["merges"] = Json::parse(R"([["a", ""]])");
  model["vocab"][""] = 6;
  expect_error(Status::corrupt, {"merge 0", "shorter than the prefix"}, [&] { return with_model(model); });
}

}  // namespace
}  // namespace qdelta
