// SentencePiece's compiled rules: those of the fixture, and maps that are damaged.
#include "data/precompiled_map.h"

#include <gtest/gtest.h>

#include <string>

#include "data_testing.h"

namespace qdelta {
namespace {

using testing::expect_error;

std::string map_of_fixture() {
  const auto file = nlohmann::json::parse(testing::read_file(testing::fixture("precompiled.json")));
  return file.at("normalizer").at("precompiled_charsmap").get<std::string>();
}

TEST(PrecompiledMap, TheShortestRule) {
  const PrecompiledMap map(map_of_fixture());
  EXPECT_EQ(map.find("A"), "a");
  EXPECT_EQ(map.find("A\xcc\x82"), "a");  // whatever follows
  EXPECT_EQ(map.find("e\xcc\x81"), "\xc3\xa9");
  EXPECT_EQ(map.find("e"), std::nullopt);
  EXPECT_EQ(map.find("\xef\xac\x81"), "fi");
  EXPECT_EQ(map.find("\xe2\x80\x8b"), "");  // becomes nothing
  EXPECT_EQ(map.find(""), std::nullopt);
  EXPECT_EQ(map.find(std::string_view("\0", 1)), std::nullopt);
}

TEST(PrecompiledMap, WhatIsDamagedIsRefused) {
  expect_error(Status::corrupt, {"base64"}, [] { return PrecompiledMap("????"); });
  for (const char* text : {"", "AAAA", "AAAAAA==", "////", "CAAAAAAAAAA="}) {
    expect_error(Status::corrupt, {"do not hold its trie"}, [&] { return PrecompiledMap(text); });
  }
  expect_error(Status::corrupt, {"not UTF-8"}, [] { return PrecompiledMap("BAAAAAAAAAD/"); });
  // A trie of one unit: every byte leads out of it.
  const PrecompiledMap outside("BAAAAAAAAAA=");
  expect_error(Status::corrupt, {"leads out"}, [&] { return outside.find("a"); });
  // Wherever it is cut or changed, there is an answer or an error.
  const std::string whole = map_of_fixture();
  for (std::size_t at = 0; at < whole.size(); at += 7) {
    std::string changed = whole;
    changed[at] = changed[at] == 'A' ? 'z' : 'A';
    try {
      const PrecompiledMap map(changed);
      for (const char* text : {"A", "e\xcc\x81", "\xef\xac\x81", "\xe2\x80\x8b", "\xef\xbd\xb6\xef\xbe\x9e"}) {
        static_cast<void>(map.find(text));
      }
    } catch (const Error& error) {
      EXPECT_EQ(error.status(), Status::corrupt) << error.what();
    }
  }
}

}  // namespace
}  // namespace qdelta
