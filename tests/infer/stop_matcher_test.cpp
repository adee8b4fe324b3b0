// Stop strings in text that comes in pieces.
#include "infer/stop_matcher.h"

#include <gtest/gtest.h>

namespace qdelta {
namespace {

// What is shown when a text comes in pieces of so many bytes.
struct Shown {
  std::string text;
  bool stopped = false;
};
Shown shown(const std::string& text, const std::vector<std::string>& stops, std::size_t piece) {
  StopMatcher matcher(stops);
  Shown result;
  for (std::size_t at = 0; at < text.size() && !matcher.stopped(); at += piece) {
    result.text += matcher.push(text.substr(at, piece));
  }
  result.stopped = matcher.stopped();
  result.text += matcher.finish();
  return result;
}

TEST(StopMatcher, FindsTheFirstStopStringHoweverTheTextIsCut) {
  const std::string text = "one two three two";
  for (std::size_t piece = 1; piece <= text.size(); ++piece) {
    EXPECT_EQ(shown(text, {"three", "two"}, piece).text, "one ") << piece;
    EXPECT_EQ(shown(text, {"two t"}, piece).text, "one ") << piece;
    EXPECT_EQ(shown(text, {"twos", "onet"}, piece).text, text) << piece;
    EXPECT_TRUE(shown(text, {"ee two"}, piece).stopped);
    EXPECT_FALSE(shown(text, {"ee twos"}, piece).stopped);
  }
}

TEST(StopMatcher, HoldsBackOnlyWhatMayBecomeAStopString) {
  StopMatcher matcher({"abcd", "bx"});
  EXPECT_EQ(matcher.push("12ab"), "12");
  EXPECT_EQ(matcher.push("c"), "");
  EXPECT_EQ(matcher.push("!"), "abc!");
  EXPECT_EQ(matcher.push("ab"), "");
  EXPECT_EQ(matcher.push("b"), "ab");  // the second b may go on to bx
  EXPECT_FALSE(matcher.stopped());
  EXPECT_EQ(matcher.finish(), "b");
  EXPECT_EQ(matcher.finish(), "");
}

TEST(StopMatcher, AStopStringThatOverlapsItself) {
  for (std::size_t piece = 1; piece <= 7; ++piece) EXPECT_EQ(shown("aabaaab", {"aaab"}, piece).text, "aab") << piece;
}

TEST(StopMatcher, WithoutStopStringsEverythingIsShownAtOnce) {
  for (const std::vector<std::string>& none : {std::vector<std::string>{}, std::vector<std::string>{""}}) {
    StopMatcher matcher(none);
    EXPECT_EQ(matcher.push("text"), "text");
    EXPECT_FALSE(matcher.stopped());
  }
}

// Strings that share beginnings and ends; which one ends first does not depend on how the text is cut.
// Were each string tried at each place, this would take hours.
TEST(StopMatcher, TheTimeIsLinearInTheText) {
  std::vector<std::string> stops;
  for (std::size_t i = 0; i < 64; ++i) stops.push_back(std::string(1023 - i, 'a') + "!");
  StopMatcher matcher(stops);
  std::size_t given = 0;
  for (int i = 0; i < 500'000; ++i) given += matcher.push("aaaa").size();
  EXPECT_FALSE(matcher.stopped());
  EXPECT_EQ(given + matcher.finish().size(), 2'000'000U);
  EXPECT_EQ(StopMatcher(stops).push(std::string(2'000'000, 'a') + "!").size(), 2'000'000U - 1023);
}

TEST(StopMatcher, OfSeveralTheOneThatEndsFirst) {
  for (std::size_t piece = 1; piece <= 8; ++piece) {
    EXPECT_EQ(shown("xxabcdyy", {"abcd", "bc"}, piece).text, "xxa") << piece;
    EXPECT_EQ(shown("xxabcdyy", {"abc", "bc"}, piece).text, "xx") << piece;
    EXPECT_EQ(shown("ushers!!", {"he", "she", "hers"}, piece).text, "u") << piece;
  }
}

// Against a search for every string at every place.
TEST(StopMatcher, AgreesWithAPlainSearch) {
  std::uint64_t random = 1;
  const auto letters = [&](std::size_t count) {
    std::string text;
    for (std::size_t i = 0; i < count; ++i) {
      random = random * 6364136223846793005U + 1442695040888963407U;
      text += static_cast<char>('a' + (random >> 60U) % 2);
    }
    return text;
  };
  for (int round = 0; round < 300; ++round) {
    const std::vector<std::string> stops{letters(5), letters(7), letters(9)};
    const std::string text = letters(60);
    std::string expected = text;
    for (std::size_t end = 1; end <= text.size() && expected == text; ++end) {
      for (const std::string& stop : {stops[2], stops[1], stops[0]}) {
        if (expected == text && text.substr(0, end).ends_with(stop)) expected = text.substr(0, end - stop.size());
      }
    }
    EXPECT_EQ(shown(text, stops, 1 + static_cast<std::size_t>(round) % 11).text, expected);
  }
}

}  // namespace
}  // namespace qdelta
