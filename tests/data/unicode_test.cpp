// UTF-8 step by step, classes, normal forms and lower case.
#include "data/unicode.h"

#include <gtest/gtest.h>

#include <string>

#include "io/untrusted_text.h"
#include "testing.h"

namespace qdelta::unicode {
namespace {

std::string text_of(char32_t code) {
  std::string text;
  append(text, code);
  return text;
}

TEST(Unicode, EveryCodePointThereAndBack) {
  for (char32_t code = 0; code < 0x110000; ++code) {
    if (code >= 0xd800 && code < 0xe000) continue;
    const std::string text = text_of(code);
    const Step next = step(text);
    ASSERT_EQ(next.kind, Step::Kind::character) << static_cast<std::uint32_t>(code);
    ASSERT_EQ(next.length, text.size());
    ASSERT_EQ(character_at(text.data()).code, code);
    ASSERT_EQ(character_at(text.data()).length, text.size());
    ASSERT_EQ(character_before(text, text.size()), 0U);
    // Every part that is cut off could still become whole.
    for (std::size_t size = 1; size < text.size(); ++size) {
      ASSERT_EQ(step(std::string_view(text).substr(0, size)).kind, Step::Kind::incomplete);
    }
  }
}

// What is found invalid is what is replaced.
TEST(Unicode, ValidityIsTheSameEverywhere) {
  Random random(3);
  for (int i = 0; i < 100000; ++i) {
    std::string text;
    for (std::int64_t n = random.integer(1, 6); n > 0; --n) {
      text += static_cast<char>(random.integer(testing::chance(random, 0.7) ? 0x80 : 0, 255));
    }
    const bool valid = !first_invalid_utf8(text);
    const std::string replaced = with_replacements(text);
    EXPECT_EQ(valid, replaced == text || text.find(kReplacement) != std::string::npos) << shown(text);
    EXPECT_FALSE(first_invalid_utf8(replaced)) << shown(text);
  }
}

TEST(Unicode, Classes) {
  EXPECT_TRUE(numbers().contains(U'7') && numbers().contains(0xbd) && numbers().contains(0x16ff4));
  EXPECT_FALSE(numbers().contains(U'a') || numbers().contains(0x110000));
  for (const char32_t c : std::u32string(U"!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")) EXPECT_TRUE(punctuation().contains(c));
  EXPECT_TRUE(punctuation().contains(0x2014) && punctuation().contains(0x166d));
  EXPECT_FALSE(punctuation().contains(U'a') || punctuation().contains(0xa2) || punctuation().contains(0x2e43));
  EXPECT_TRUE(word().contains(U'_') && word().contains(0x300) && word().contains(0x200d) && word().contains(0x24b6));
  EXPECT_FALSE(word().contains(U'-') || word().contains(0xb2));
}

TEST(Unicode, NormalForms) {
  EXPECT_EQ(normalized("e\xcc\x81", Form::nfc), "\xc3\xa9");
  EXPECT_EQ(normalized("\xc3\xa9", Form::nfd), "e\xcc\x81");
  EXPECT_EQ(normalized("\xef\xac\x81", Form::nfkc), "fi");
  EXPECT_EQ(normalized("\xef\xac\x81", Form::nfc), "\xef\xac\x81");
  EXPECT_EQ(normalized("\xc2\xbd", Form::nfkd),
            "1\xe2\x81\x84"
            "2");
  EXPECT_EQ(normalized("plain", Form::nfkc), "plain");
  EXPECT_EQ(normalized("\xe3\x8b\xbf", Form::nfkc), "\xe3\x8b\xbf");  // U+32FF is newer than 9.0
}

TEST(Unicode, LowerCase) {
  EXPECT_EQ(lower_case("ABC xyz \xc3\x84\xce\xa3"), "abc xyz \xc3\xa4\xcf\x83");  // no final sigma
  EXPECT_EQ(lower_case("\xc4\xb0"), "i\xcc\x87");
  EXPECT_EQ(lower_case("\xe1\xba\x9e"), "\xc3\x9f");
  EXPECT_EQ(lower_case(text_of(0x10d50)), text_of(0x10d70));
  EXPECT_EQ(lower_case(text_of(0xa7cb)), text_of(0x264));
}

}  // namespace
}  // namespace qdelta::unicode
