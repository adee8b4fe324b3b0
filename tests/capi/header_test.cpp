// The public header alone, as other languages and compilers will see it.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstdlib>
#include <filesystem>
#include <string>

namespace qdelta::testing {
namespace {

// Compiles nothing but the header; warnings are errors.
bool compiles(const std::string& compiler, const std::string& language, const std::string& standard) {
  const std::filesystem::path include = std::filesystem::path(QDELTA_TESTS_DIR) / "../include";
  const std::string command = "printf '#include <qdelta/qdelta.h>\\n#include <qdelta/model.h>\\n' | " + compiler +
                              " -x " + language + " -std=" + standard + " -pedantic-errors -Wall -Wextra -Werror" +
                              " -fsyntax-only -I'" + include.string() + "' -";
  return std::system(command.c_str()) == 0;
}

bool exists(const std::string& compiler) {
  return std::system(("command -v " + compiler + " > /dev/null 2>&1").c_str()) == 0;
}

TEST(Header, IsC99) {
  if (!exists("cc")) GTEST_SKIP() << "no C compiler here";
  for (const char* standard : {"c99", "c11", "gnu17"}) {
    EXPECT_TRUE(compiles("cc -Wstrict-prototypes", "c", standard)) << standard;
  }
}

TEST(Header, IsCxx) {
  if (!exists("c++")) GTEST_SKIP() << "no C++ compiler here";
  for (const char* standard : {"c++11", "c++20"}) EXPECT_TRUE(compiles("c++", "c++", standard)) << standard;
}

}  // namespace
}  // namespace qdelta::testing
