#include "eval/python_text.h"

#include <gtest/gtest.h>

namespace qdelta::eval {
namespace {

TEST(PythonText, Strips) {
  EXPECT_EQ(stripped(" \t\n a b\u00a0\u2003\x1c"), "a b");
  EXPECT_EQ(stripped(" \n "), "");
  EXPECT_EQ(right_stripped(" a \n"), " a");
  EXPECT_EQ(stripped_of("..a.b..", '.'), "a.b");
}

TEST(PythonText, ReplacesFromTheLeftOnce) {
  EXPECT_EQ(replaced("a   b", "  ", " "), "a  b");
  EXPECT_EQ(replaced("aaaa", "aa", "a"), "aa");
  EXPECT_EQ(replaced("", "a", "b"), "");
}

TEST(PythonText, Capitalizes) {
  EXPECT_EQ(capitalized("hello WORLD"), "Hello world");
  EXPECT_EQ(capitalized("éCOLE"), "École");
  EXPECT_EQ(capitalized(""), "");
  EXPECT_EQ(capitalized("ßA"), "Ssa");           // one character becomes two
  EXPECT_EQ(capitalized("ǆA"), "ǅa");            // a capital that is not upper case
  EXPECT_EQ(capitalized("ΟΔΟΣ ΣΑ"), "Οδος σα");  // a sigma ends a word in its own way
  EXPECT_EQ(capitalized("ΣΑΣ"), "Σας");
  EXPECT_EQ(capitalized("1 Ab"), "1 ab");
  EXPECT_EQ(first_raised("device Name"), "Device Name");
  EXPECT_EQ(first_raised("ßA"), "SSA");
  EXPECT_EQ(first_raised(""), "");
}

TEST(PythonText, CountsCharactersAndWords) {
  EXPECT_EQ(length_of("naïve – 😀"), 9);
  EXPECT_EQ(split_count("a b"), 2);
  EXPECT_EQ(split_count(" a  b \n"), 4);  // with the empty ones at both ends
  EXPECT_EQ(split_count(""), 1);
}

TEST(PythonText, FindsInAnyCase) {
  EXPECT_EQ(find_any_case("The ANSWER is", "answer"), 4U);
  EXPECT_EQ(find_any_case("É l'Été", "été"), 5U);
  EXPECT_EQ(find_any_case("abc", "d"), std::string::npos);
  EXPECT_EQ(find_any_case("ο Κόσμος", "ΚΌΣΜΟΣ"), 3U);
  EXPECT_EQ(find_any_case("ſaint", "S"), 0U);
  // The place is in the text as it was, where a letter's other case has another length.
  EXPECT_EQ(find_any_case("\u212ax Y", "y"), 5U);
  EXPECT_EQ(find_any_case("\u0130x Y", "y"), 4U);
}

}  // namespace
}  // namespace qdelta::eval
