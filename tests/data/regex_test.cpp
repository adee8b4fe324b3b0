// Regular expressions as the Hugging Face tokenizers (0.23) read them, from which the expected values are; and what is
// refused.
#include "data/regex.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "data/unicode.h"
#include "testing.h"

namespace qdelta {
namespace {

using testing::expect_error;
using Pieces = std::vector<std::string>;

// The matches in brackets, the rest as it is.
Pieces segments(const std::string& pattern, const std::string& text) {
  const Regex regex(pattern);
  Pieces pieces;
  regex.for_each_segment(text, [&](std::size_t begin, std::size_t end, bool is_match) {
    const std::string piece = text.substr(begin, end - begin);
    pieces.push_back(is_match ? "[" + piece + "]" : piece);
  });
  return pieces;
}

bool matches(const std::string& pattern, char32_t code) {
  std::string text;
  unicode::append(text, code);
  Regex::Match match{};
  return Regex(pattern).find(text, 0, match);
}

TEST(Regex, Segments) {
  EXPECT_EQ(segments("b+", "abbcb"), (Pieces{"a", "[bb]", "c", "[b]"}));
  EXPECT_EQ(segments("b+", "xyz"), (Pieces{"xyz"}));
  EXPECT_EQ(segments("b+", ""), Pieces{});
  EXPECT_EQ(segments("(a)(b)|c", "abcd"), (Pieces{"[ab]", "[c]", "d"}));
  // Empty matches: one at each place, but none where the last match ended.
  EXPECT_EQ(segments("x*", "axb"), (Pieces{"[]", "a", "[x]", "b", "[]"}));
}

TEST(Regex, Gpt2) {
  const std::string pattern = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
  EXPECT_EQ(segments(pattern, "I'll pay  $20.\n\n "),
            (Pieces{"[I]", "['ll]", "[ pay]", "[ ]", "[ $]", "[20]", "[.]", "[\n\n ]"}));
}

TEST(Regex, ClassesAreOnigurumas) {
  EXPECT_FALSE(matches(R"(\s)", 0x180e));  // a space in Unicode 6
  EXPECT_FALSE(matches(R"(\s)", 0x200b));
  for (const char32_t space : {0x09, 0x0b, 0x0d, 0x20, 0x85, 0xa0, 0x1680, 0x2028, 0x3000}) {
    EXPECT_TRUE(matches(R"(\s)", space)) << static_cast<std::uint32_t>(space);
    EXPECT_FALSE(matches(R"(\S)", space));
    EXPECT_FALSE(matches(R"([^\s])", space));
    EXPECT_FALSE(matches(R"([\S])", space));
  }
  EXPECT_TRUE(matches(R"(\h)", U'f'));  // a hexadecimal digit, not horizontal space
  EXPECT_FALSE(matches(R"(\h)", U' '));
  EXPECT_TRUE(matches(R"(\w)", 0x300));  // a mark
  EXPECT_TRUE(matches(R"(\w)", 0xb2));   // superscript two
  EXPECT_FALSE(matches(R"(\w)", 0x2082));
  EXPECT_TRUE(matches(R"(\p{Han})", 0x6cb3));
  EXPECT_FALSE(matches(R"(\p{Han})", 0x3002));  // in Script_Extensions only
  EXPECT_TRUE(matches(R"(\p{^L})", U'1'));
  EXPECT_TRUE(matches(R"(\P{L})", U'1'));
  EXPECT_FALSE(matches(R"(\P{^L})", U'1'));
  EXPECT_TRUE(matches(R"(\p{lu})", U'A'));
}

TEST(Regex, UnicodeIs16) {
  EXPECT_TRUE(matches(R"(\p{L})", 0x1c89));     // 16.0
  EXPECT_TRUE(matches(R"(\p{L})", 0x2ebf0));    // 15.1
  EXPECT_TRUE(matches(R"(\p{Han})", 0x31350));  // 15.0
  EXPECT_TRUE(matches(R"(\p{Nd})", 0x10d40));
  EXPECT_TRUE(matches(R"(\d)", 0x10d40));
  EXPECT_FALSE(matches(R"([^\p{L}])", 0x1c89));
  EXPECT_FALSE(matches(R"(\P{L})", 0x1c89));
  EXPECT_FALSE(matches(R"([\P{L}])", 0x1c89));
}

TEST(Regex, NestedAndIntersectedClasses) {
  EXPECT_EQ(segments("[a-c[x-z]]+", "abxd"), (Pieces{"[abx]", "d"}));
  EXPECT_EQ(segments("[a-z&&[^aeiou]]+", "strange"), (Pieces{"[str]", "a", "[ng]", "e"}));
  EXPECT_EQ(segments("[^a-z&&[^aeiou]]+", "strange"), (Pieces{"str", "[a]", "ng", "[e]"}));
  EXPECT_EQ(segments(R"([\S&&\D]+)", "a1 b"), (Pieces{"[a]", "1 ", "[b]"}));
  EXPECT_EQ(segments(R"([^\S\n]+)", "a \nb"), (Pieces{"a", "[ ]", "\nb"}));
  EXPECT_EQ(segments(R"([a\-z\]]+)", "-]b"), (Pieces{"[-]]", "b"}));
}

TEST(Regex, LinesAndRepetitions) {
  EXPECT_EQ(segments("^a", "a\na"), (Pieces{"[a]", "\n", "[a]"}));  // ^ and $ are at every line
  EXPECT_EQ(segments("a$", "a\na"), (Pieces{"[a]", "\n", "[a]"}));
  EXPECT_EQ(segments(R"(\Aa)", "a\na"), (Pieces{"[a]", "\na"}));
  EXPECT_EQ(segments("a{,2}b", "aaab"), (Pieces{"a", "[aab]"}));
  EXPECT_EQ(segments("a{2}", "aaaaa"), (Pieces{"[aa]", "[aa]", "a"}));
  EXPECT_EQ(segments("a++a", "aaa"), (Pieces{"aaa"}));
  EXPECT_EQ(segments("a+?", "aa"), (Pieces{"[a]", "[a]"}));
  EXPECT_EQ(segments("(?i:'LL)x", "'llx'LLX"), (Pieces{"['llx]", "'LLX"}));
  EXPECT_EQ(segments("(?i)k", "kK\xe2\x84\xaa"), (Pieces{"[k]", "[K]", "[\xe2\x84\xaa]"}));
}

TEST(Regex, WordCharactersInAndOutsideOfAClass) {
  for (const char32_t c : {0xb2, 0xb3, 0xb9, 0xbc, 0xbe}) {  // superscripts and fractions
    EXPECT_TRUE(matches(R"(\w)", c)) << static_cast<std::uint32_t>(c);
    EXPECT_FALSE(matches(R"([\w])", c)) << static_cast<std::uint32_t>(c);
    EXPECT_TRUE(matches(R"([\W])", c)) << static_cast<std::uint32_t>(c);
  }
  EXPECT_TRUE(matches(R"(\w)", 0x1c89) && matches(R"([\w])", 0x1c89));  // of Unicode 16.0
  EXPECT_FALSE(matches(R"(\p{Mn})", 0x1171e));                          // Mc since Unicode 15.0
  EXPECT_TRUE(matches(R"(\p{Mc})", 0x1171e));
  EXPECT_TRUE(matches(R"(\p{Ahom})", 0x1171e));
  EXPECT_TRUE(matches(R"(\p{Cn})", 0x378));
  EXPECT_FALSE(matches(R"(\p{Cn})", 0x1c89));
  EXPECT_TRUE(matches("[[:alpha:]]", 0x1c89) && matches("[[:alpha:]]", 0x363) && matches("[[:lower:]]", 0x10fc));
  EXPECT_TRUE(matches(R"(\p{Kannada})", 0xcf3) && matches(R"(\p{Letter})", 0x1c89) && matches(R"(\p{arab})", 0x897));
}

TEST(Regex, WordAsAProperty) {
  for (const char* pattern : {R"(\p{Word}+)", R"(\P{^word}+)", R"(\p{ W-o_rd}+)", R"((?#\p{Word}[)\p{Word}+)"}) {
    EXPECT_EQ(segments(pattern, "a\xc2\xb2-b"), (Pieces{"[a\xc2\xb2]", "-", "[b]"})) << pattern;
  }
  EXPECT_EQ(segments(R"(\p{^Word}|\P{Word}x)", "a\xc2\xb2-b"), (Pieces{"a\xc2\xb2", "[-]", "b"}));
  for (const char* pattern : {R"([\p{Word}]+)", R"([]\p{Word}]+)", R"([^\P{Word}]+)", R"([\[[x]\p{Word}]+)"}) {
    EXPECT_EQ(segments(pattern, "a\xc2\xb2-b"), (Pieces{"[a]", "\xc2\xb2-", "[b]"})) << pattern;
  }
  EXPECT_EQ(segments(R"(\\p{Word})", R"(a\p{Word})"), (Pieces{"a", R"([\p{Word}])"}));  // a backslash, p, ...
}

TEST(Regex, ClustersOfUnicode16) {
  EXPECT_EQ(segments(R"(\X)", "\r\n\r\xcc\x81"), (Pieces{"[\r\n]", "[\r]", "[\xcc\x81]"}));
  const std::string mark = "\xf0\x91\xbc\x80";  // U+11F00, since 15.0
  EXPECT_EQ(segments(R"(\X{2}|\n)", "x" + mark + "\xcc\x81y\n"), (Pieces{"[x" + mark + "\xcc\x81y]", "[\n]"}));
  EXPECT_EQ(segments(R"(x|\X)", "x" + mark + mark), (Pieces{"[x]", "[" + mark + mark + "]"}));
  EXPECT_EQ(segments(R"([\X]|\\X|(?#\X)(?:\X)y)", "X\\Xxy"), (Pieces{"[X]", "[\\X]", "[xy]"}));
  // What stands before counts: flags are pairs, whatever was matched before.
  const std::string a = "\xf0\x9f\x87\xa6", b = "\xf0\x9f\x87\xa7";
  EXPECT_EQ(segments(a + R"(|\X)", a + b + b + b), (Pieces{"[" + a + "]", "[" + b + "]", "[" + b + b + "]"}));
}

TEST(Regex, MoreOfTheSyntax) {
  EXPECT_EQ(segments(R"(\bx)", "x xx"), (Pieces{"[x]", " ", "[x]", "x"}));
  EXPECT_EQ(segments(R"(x\Bx)", "xx x"), (Pieces{"[xx]", " x"}));
  EXPECT_EQ(segments(R"(\R)", "a\r\nb"), (Pieces{"a", "[\r\n]", "b"}));
  EXPECT_EQ(segments(R"(\X)", "e\xcc\x81x"), (Pieces{"[e\xcc\x81]", "[x]"}));
  EXPECT_EQ(segments(R"(a\Kb)", "ab"), (Pieces{"a", "[b]"}));
  EXPECT_EQ(segments(R"((a|b)\1)", "abba"), (Pieces{"a", "[bb]", "a"}));
  EXPECT_EQ(segments(R"((?<n>a|b)\k<n>)", "abba"), (Pieces{"a", "[bb]", "a"}));
  EXPECT_EQ(segments(R"((?<p>\((?:[^()]|\g<p>)*\)))", "x(a(b))y"), (Pieces{"x", "[(a(b))]", "y"}));
  EXPECT_EQ(segments("(?#x)a", "ba"), (Pieces{"b", "[a]"}));
  EXPECT_EQ(segments("(?m:a.)", "a\n"), (Pieces{"[a\n]"}));
  EXPECT_EQ(segments("(?x) a b # the end", "ab"), (Pieces{"[ab]"}));
  EXPECT_EQ(segments("(?i:ss)", "\xc3\x9f"), (Pieces{"[\xc3\x9f]"}));
  EXPECT_EQ(segments("a**", "aaa"), (Pieces{"[aaa]"}));
  EXPECT_EQ(segments("a{", "a{"), (Pieces{"[a{]"}));
  EXPECT_EQ(segments("(a)?(?(1)b|c)", "abc"), (Pieces{"[ab]", "[c]"}));
  EXPECT_EQ(segments("[[:punct:]]", "a$b.c\xc2\xa2"), (Pieces{"a", "[$]", "b", "[.]", "c", "[\xc2\xa2]"}));
  EXPECT_EQ(segments(R"(\p{Punct})", "a$b.c\xc2\xa2"), (Pieces{"a$b", "[.]", "c\xc2\xa2"}));
  EXPECT_EQ(segments("[[:^punct:]]+", "a$b"), (Pieces{"[a]", "$", "[b]"}));

  EXPECT_EQ(segments("a(?i)b|c", "aBC"), (Pieces{"[aB]", "C"}));
  EXPECT_EQ(segments("[]a]", "]a"), (Pieces{"[]]", "[a]"}));
  EXPECT_EQ(segments("a{1,2}+", "aaaaa"), (Pieces{"[aaaaa]"}));
  EXPECT_EQ(segments("a{2}?", "aa"), (Pieces{"[aa]"}));
  EXPECT_EQ(segments("(?i:stra\xc3\x9f"
                     "e)",
                     "STRASSE"),
            (Pieces{"[STRASSE]"}));
  EXPECT_EQ(segments("(?i:[^a])", "Ab"), (Pieces{"A", "[b]"}));
}

// Properties of which versions of the library disagree.
TEST(Regex, Refused) {
  for (const char* pattern : {R"(\p{Alphabetic})", R"(\p{Emoji})", R"(\p{Klingon})", R"(\p{In_Arabic})",
                              R"([\p{Uppercase}])", R"(\p{Age=15.0})", "a{200000}"}) {
    expect_error(Status::unsupported, {"the regular expression"}, [&] { return Regex(pattern); });
  }
}

TEST(Regex, NotOne) {
  for (const char* pattern : {"(a", "a)", "[a", "*a", "a|*", "\\", "[b-a]", R"(\p{L)", R"(\u12)", R"([a-\d])",
                              R"([\d-a])", "(?=a)*", "(?(1)a|b)", "(*UTF)a", R"(\k<n>)", "\xff"}) {
    expect_error(Status::corrupt, {"the regular expression"}, [&] { return Regex(pattern); });
  }
  expect_error(Status::unsupported, {"deep"}, [] { return Regex(std::string(1000, '(') + std::string(1000, ')')); });
  expect_error(Status::unsupported, {"deep"}, [] { return Regex(std::string(1000, '[')); });
}

TEST(Regex, TooManyStepsIsAnError) {
  const Regex regex("(?:a|a|b)+c");
  Regex::Match match{};
  std::string text(1998, 'a');
  text += "xc";  // without its last character it would not be tried
  expect_error(Status::unsupported, {"cannot be matched", "2000 bytes"}, [&] { return regex.find(text, 0, match); });
}

TEST(Regex, LongRuns) {
  const Regex regex(R"(\s+(?!\S)|\s+|\p{L}+)");
  for (const std::string piece : {" ", "x", "\xe6\xb2\xb3"}) {
    std::string text;
    for (int i = 0; i < 1000000; ++i) text += piece;
    Regex::Match match{};
    ASSERT_TRUE(regex.find(text, 0, match));
    EXPECT_EQ(match.end, text.size());
  }
}

}  // namespace
}  // namespace qdelta
