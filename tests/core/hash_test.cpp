// Hashes are kept in files and make seeds: they must never change.
#include "core/hash.h"

#include <gtest/gtest.h>

#include <string_view>

#include "core/fnv1a.h"

namespace qdelta {
namespace {

std::uint64_t of(std::string_view text, std::uint64_t seed = 0) {
  return hash_bytes(std::as_bytes(std::span(text)), seed);
}

TEST(Hash, IsXxh3) {
  EXPECT_EQ(of(""), 0x2d06800538d394c2U);  // of the XXH3 specification
  EXPECT_EQ(of("abc"), 0x78af5f94892f3950U);
  EXPECT_NE(of("abc", 1), of("abc"));
}

TEST(Hash, OfTextsKnowsWhereTheyEnd) {
  EXPECT_EQ(hash_texts({"abc"}), of("abc"));
  EXPECT_EQ(hash_texts({"ab", "c"}), of("c", of("ab")));
  EXPECT_NE(hash_texts({"ab", "c"}), hash_texts({"a", "bc"}));
  EXPECT_NE(hash_texts({"abc", ""}), hash_texts({"", "abc"}));
  EXPECT_NE(hash_texts({"abc", ""}), hash_texts({"abc"}));
}

TEST(Fnv1a, OfTextsAndWords) {
  static_assert(fnv1a::step(fnv1a::kStart, 'a') == 0xaf63dc4c8601ec8cU);  // the published hash of "a"
  EXPECT_EQ(fnv1a::of_texts({}), fnv1a::kStart);
  EXPECT_EQ(fnv1a::of_texts({"bytes"}), 0x0e161285becc5601U);
  EXPECT_NE(fnv1a::of_texts({"ab", "c"}), fnv1a::of_texts({"a", "bc"}));
  const std::uint64_t words[] = {1, 2};
  const auto bytes = std::as_bytes(std::span(words));
  EXPECT_EQ(fnv1a::of_words(bytes), fnv1a::step(fnv1a::step(fnv1a::kStart, 1), 2));
  EXPECT_EQ(fnv1a::of_words(bytes.last(8), fnv1a::of_words(bytes.first(8))), fnv1a::of_words(bytes));
}

}  // namespace
}  // namespace qdelta
