// Which characters are punctuation, marks and so on: every code point against the Hugging Face tokenizers 0.23, whose
// answers are in fixtures/character_sets.json.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "data/json_tokenizer.h"
#include "data/normalizers.h"
#include "data/regex.h"
#include "data/unicode.h"
#include "data_testing.h"

namespace qdelta {
namespace {

using testing::fixture;
using testing::read_file;

std::vector<bool> expected_set(const std::string& name) {
  static const nlohmann::json all = nlohmann::json::parse(read_file(fixture("character_sets.json")));
  const auto bounds = all.at(name).get<std::vector<std::size_t>>();
  std::vector<bool> in(0x110000);
  for (std::size_t i = 0; i < bounds.size(); i += 2) {
    for (std::size_t code = bounds[i]; code <= bounds[i + 1]; ++code) in[code] = true;
  }
  return in;
}

template <class Contains>
void expect_same_set(const std::string& name, const Contains& contains) {
  const std::vector<bool> expected = expected_set(name);
  for (char32_t code = 0; code < 0x110000; ++code) {
    if (code >= 0xd800 && code < 0xe000) continue;
    ASSERT_EQ(contains(code), expected[code]) << name << " U+" << std::hex << static_cast<std::uint32_t>(code);
  }
}

TEST(CharacterSets, OfPreTokenizers) {
  expect_same_set("Punctuation", [](char32_t c) { return unicode::punctuation().contains(c); });
  expect_same_set("Digits", [](char32_t c) { return unicode::numbers().contains(c); });
}

// Whether a normalizer makes nothing of the character between two others.
void expect_removed(const std::string& name, const nlohmann::json& settings) {
  const std::string label = "label";
  const auto normalizer = make_normalizer(JsonAt(settings, label));
  expect_same_set(name, [&](char32_t code) {
    NormalizedText text{"a", true};
    unicode::append(text.text, code);
    text.text += 'b';
    normalizer->apply(text);
    return text.text == "ab";
  });
}

TEST(CharacterSets, OfNormalizers) {
  const auto bert = [](bool clean, bool strip) {
    return nlohmann::json{{"type", "BertNormalizer"},
                          {"clean_text", clean},
                          {"handle_chinese_chars", false},
                          {"strip_accents", strip},
                          {"lowercase", false}};
  };
  expect_removed("clean_text", bert(true, false));
  expect_removed("strip_accents", bert(false, true));
  expect_removed("StripAccents", nlohmann::json::parse(R"({"type": "StripAccents"})"));
}

TEST(CharacterSets, OfRegularExpressions) {
  std::string all;
  for (char32_t code = 0; code < 0x110000; ++code) {
    if (code < 0xd800 || code >= 0xe000) unicode::append(all, code);
  }
  for (const char* expression : {R"(\w)", R"([\w])", R"(\p{Word})", R"([\p{Word}])", R"(\p{Mn})", R"(\p{Punct})",
                                 "[[:punct:]]", "[[:alpha:]]", "[[:graph:]]", "[[:cntrl:]]", R"(\h)"}) {
    std::vector<bool> found(0x110000);
    Regex(expression).for_each_segment(all, [&](std::size_t begin, std::size_t end, bool is_match) {
      if (is_match && begin != end) found[unicode::character_at(all.data() + begin).code] = true;
    });
    expect_same_set(expression, [&](char32_t code) { return static_cast<bool>(found[code]); });
  }
}

// Whether `before`, the character and `after` are one cluster, for those code points that are more than unassigned.
void expect_clusters(const std::string& name, const std::string& before, const std::string& after) {
  const Regex cluster(R"(\X)");
  expect_same_set(name, [&](char32_t code) {
    if (code >= 0x33480 && (code < 0xe0000 || code >= 0xe1000)) return false;
    std::string text = before;
    unicode::append(text, code);
    text += after;
    Regex::Match match{};
    return cluster.find(text, 0, match) && match.end == text.size();
  });
}

TEST(CharacterSets, OfClusters) {
  expect_clusters(R"(\X of a letter and)", "a", "");
  expect_clusters(R"(\X before a letter)", "", "a");
  expect_clusters(R"(\X before a mark)", "", "\xcc\x81");
}

}  // namespace
}  // namespace qdelta
