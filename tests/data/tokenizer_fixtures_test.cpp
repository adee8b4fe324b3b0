// The tokenizers against the reference libraries: the ids and texts in fixtures/expected.json were made by them.
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "data/sentencepiece_tokenizer.h"
#include "data/tokenizer.h"
#include "data/unicode.h"
#include "data_testing.h"
#include "io/untrusted_text.h"

namespace qdelta {
namespace {

using testing::fixture;
using testing::read_file;

using Ids = std::vector<std::int32_t>;

struct Expected {
  std::string text;
  Ids ids;
  std::string decoded;
  std::optional<std::string> decoded_with_special;  // none: the library has no such thing
  std::optional<Ids> ids_with_special;
};

const nlohmann::json& expectations() {
  static const nlohmann::json json = nlohmann::json::parse(read_file(fixture("expected.json")));
  return json;
}

std::vector<std::string> tokenizer_names() {
  std::vector<std::string> names;
  for (const auto& [name, unused] : expectations().at("tokenizers").items()) names.push_back(name);
  return names;
}

std::vector<Expected> expected_of(const std::string& name) {
  std::vector<Expected> all;
  const nlohmann::json& texts = expectations().at("texts");
  const nlohmann::json& rows = expectations().at("tokenizers").at(name);
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const nlohmann::json& row = rows.at(i);
    Expected expected{texts[i].get<std::string>(), row[0].get<Ids>(), {}, {}, {}};
    // True stands for what was there before: the text, the decoded text, the ids.
    expected.decoded = row[1] == true ? expected.text : row[1].get<std::string>();
    if (!row[2].is_null()) {
      expected.decoded_with_special = row[2] == true ? expected.decoded : row[2].get<std::string>();
    }
    if (!row[3].is_null()) expected.ids_with_special = row[3] == true ? expected.ids : row[3].get<Ids>();
    all.push_back(std::move(expected));
  }
  return all;
}

class Fixture : public ::testing::TestWithParam<std::string> {
 protected:
  const std::unique_ptr<Tokenizer> tokenizer_ = load_tokenizer(fixture(GetParam()));
  const std::vector<Expected> expected_ = expected_of(GetParam());
};

TEST_P(Fixture, Ids) {
  for (const Expected& row : expected_) EXPECT_EQ(tokenizer_->encode(row.text), row.ids) << shown(row.text);
}

// A second time they come out of the cache; and in another order, out of a cache that others have used.
TEST_P(Fixture, IdsAgain) {
  for (int round = 0; round < 2; ++round) {
    for (auto row = expected_.rbegin(); row != expected_.rend(); ++row) {
      EXPECT_EQ(tokenizer_->encode(row->text), row->ids) << shown(row->text);
    }
  }
}

TEST_P(Fixture, Text) {
  for (const Expected& row : expected_) EXPECT_EQ(tokenizer_->decode(row.ids), row.decoded) << shown(row.text);
}

TEST_P(Fixture, TextWithSpecialTokens) {
  for (const Expected& row : expected_) {
    if (!row.decoded_with_special) continue;
    EXPECT_EQ(tokenizer_->decode(row.ids, Tokenizer::Special::keep), *row.decoded_with_special) << shown(row.text);
  }
}

TEST_P(Fixture, IdsWithSpecialTokens) {
  for (const Expected& row : expected_) {
    if (!row.ids_with_special) continue;
    EXPECT_EQ(tokenizer_->encode_with_special(row.text), *row.ids_with_special) << shown(row.text);
  }
}

TEST_P(Fixture, StreamedTextIsTheWholeText) {
  for (const Expected& row : expected_) {
    TokenStream stream(*tokenizer_);
    std::string text;
    for (const std::int32_t id : row.ids) {
      const std::string piece = stream.push(id);
      EXPECT_FALSE(first_invalid_utf8(piece)) << shown(piece);
      text += piece;
    }
    EXPECT_EQ(text + stream.finish(), row.decoded) << shown(row.text);
  }
}

TEST_P(Fixture, EveryIdIsInTheVocabulary) {
  for (const Expected& row : expected_) {
    for (const std::int32_t id : tokenizer_->encode(row.text)) {
      EXPECT_GE(id, 0);
      EXPECT_LT(id, tokenizer_->vocab_size());
    }
  }
}

TEST_P(Fixture, SavedAndFoundAgain) {
  const testing::TemporaryFolder folder;
  save_tokenizer(*tokenizer_, folder.path());
  const auto again = load_tokenizer(folder.path());
  EXPECT_EQ(again->fingerprint(), tokenizer_->fingerprint());
  EXPECT_EQ(again->vocab_size(), tokenizer_->vocab_size());
  EXPECT_EQ(again->bos(), tokenizer_->bos());
  EXPECT_EQ(again->eos(), tokenizer_->eos());
  for (const Expected& row : expected_) EXPECT_EQ(again->encode(row.text), row.ids) << shown(row.text);
}

INSTANTIATE_TEST_SUITE_P(Tokenizers, Fixture, ::testing::ValuesIn(tokenizer_names()), [](const auto& test) {
  std::string name = test.param.substr(0, test.param.find('.'));
  return name + (test.param.ends_with(".model") ? "_model" : "_json");
});

// Where our own encoder stands in for the library's, the two must agree on everything.
TEST(SentencePiece, OwnEncoderIsTheLibrarys) {
  for (const char* name : {"bpe.model", "bpe_unknown.model"}) {
    const std::string contents = read_file(fixture(name));
    const auto own = make_sentencepiece_tokenizer(contents, name, {}, {});
    const auto library = make_sentencepiece_tokenizer(contents, name, {}, {}, SentencePieceEncoder::library);
    Random random(5);
    const std::vector<std::string> pieces = {
        " ",    "  ", "the", "mill", "river", "\n", "\xe2\x96\x81", "e", "\xc3\xa9", "\xe6\xb2\xb3", "\xf0\x9f\x98\x80",
        "1984", ".",  "t",   "h",    "in"};
    for (int i = 0; i < (testing::quick() ? 200 : 3000); ++i) {
      std::string text;
      for (std::int64_t n = random.integer(0, 30); n > 0; --n) {
        if (testing::chance(random, 0.9)) {
          text += testing::pick(random, pieces);
        } else {
          char32_t code = static_cast<char32_t>(random.integer(0, 0x10ffff));
          if (code >= 0xd800 && code < 0xe000) code = U'x';
          unicode::append(text, code);
        }
      }
      EXPECT_EQ(own->encode(text), library->encode(text)) << shown(text);
    }
  }
}

}  // namespace
}  // namespace qdelta
