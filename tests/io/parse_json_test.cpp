// JSON from anybody: what is too deep, too long or of too many values is refused before there is memory for it.
#include "io/parse_json.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "io/regular_file.h"
#include "io_testing.h"

namespace qdelta::testing {
namespace {

TEST(ParseJson, GivesWhatIsThere) {
  EXPECT_EQ(parse_json(R"({"b": [1, "x,[{"], "a": null})", "text").at("b").at(1), "x,[{");
  EXPECT_EQ(parse_ordered_json(R"({"b": 1, "a": 2})", "text").dump(), R"({"b":1,"a":2})");
}

TEST(ParseJson, DepthIsLimited) {
  const auto nested = [](int levels) {
    return std::string(static_cast<std::size_t>(levels), '[') + std::string(static_cast<std::size_t>(levels), ']');
  };
  EXPECT_NO_THROW((void)parse_json(nested(100), "text"));
  for (const int levels : {101, 100'000}) {
    expect_error(Status::corrupt, {"text", "100 levels"}, [&] { return parse_json(nested(levels), "text"); });
    expect_error(Status::corrupt, {"text", "100 levels"}, [&] { return parse_ordered_json(nested(levels), "text"); });
  }
  EXPECT_NO_THROW((void)parse_json("\"" + std::string(1000, '[') + "\\\"" + std::string(1000, '[') + "\"", "text"));
}

TEST(ParseJson, SizeAndNumberOfValuesAreLimited) {
  const JsonLimits limits{.bytes = 100, .values = 10};
  EXPECT_NO_THROW((void)parse_json("[1,2,3,4,5,6,7,8,9]", "text", limits));
  expect_error(Status::corrupt, {"text", "10 JSON values"},
               [&] { return parse_json("[1,2,3,4,5,6,7,8,9,0]", "text", limits); });
  expect_error(Status::corrupt, {"text", "10 JSON values"},
               [&] { return parse_json("[[],[],[],[],[],[]]", "text", limits); });
  expect_error(Status::corrupt, {"text", "101 bytes", "100"},
               [&] { return parse_json("\"" + std::string(99, 'x') + "\"", "text", limits); });
}

TEST(ParseJson, WhatIsNoJsonIsNamed) {
  expect_error(Status::corrupt, {"text", "not valid JSON"}, [] { return parse_json("{", "text"); });
  expect_error(Status::corrupt, {"text", "UTF-8 at byte 1"}, [] { return parse_json("\"\xff\"", "text"); });
  expect_error(Status::corrupt, {"text", "NUL"}, [] { return parse_json(std::string("{}\0", 3), "text"); });
}

// With the ids as plain arrays again.
nlohmann::json plain(const nlohmann::json& value) {
  if (is_json_ids(value)) return json_ids(value);
  nlohmann::json copy = value;
  if (value.is_structured()) {
    for (auto& part : copy) part = plain(nlohmann::json(part));
  }
  return copy;
}

std::string array_of(std::size_t count, const std::string& number = "7", const std::string& comma = ",") {
  std::string text = "[" + number;
  for (std::size_t i = 1; i < count; ++i) text += comma + std::to_string(i * i);
  return text + "]";
}

TEST(ParseJsonWithIds, GivesTheSameValues) {
  const std::string few = array_of(kFewestIds - 1);
  const std::string ids = array_of(kFewestIds);
  const std::string spaced = array_of(40, " 2147483647\n", " ,\t");
  for (const std::string& text :
       {ids, "[" + ids + "," + few + ",[]," + spaced + ",[[" + ids + "]]]",
        R"({"a":")" + ids + R"(\"[","b":)" + ids + "}",
        R"({"a":)" + ids + R"(,"a":)" + few + R"(,"b":{"[":)" + spaced + "}}", array_of(40, "2147483648"),
        array_of(40, "-1"), array_of(40, "1.0"), array_of(40, "1e3"), array_of(40, "\"7\""), array_of(40, "[7]"),
        array_of(40, "null"), array_of(40, "0")}) {
    EXPECT_EQ(plain(parse_json_with_ids(text, "text")), parse_json(text, "text")) << text;
  }
  EXPECT_TRUE(is_json_ids(parse_json_with_ids(spaced, "text")));
  EXPECT_TRUE(is_json_ids(parse_json_with_ids("[" + few + "," + ids + "]", "text").at(1)));
  EXPECT_FALSE(is_json_ids(parse_json_with_ids(few, "text")));
}

TEST(ParseJsonWithIds, IdsOfAnyLengthAndWhatStandsBehindThem) {
  std::string text = "[";
  std::vector<std::int64_t> expected;
  for (std::int64_t ten = 1; ten < 2147483647; ten *= 10) {
    for (const std::int64_t id : {ten - 1, ten, 9 * ten / 10 + 1, 12345678901 / (10000000000 / ten)}) {
      for (const char* behind : {",", ", ", " ,", "\n,\t"}) {
        text += std::to_string(id) + behind;
        expected.push_back(id);
      }
    }
  }
  for (const char* last : {"0", "9", "10", "1234567", "12345678", "123456789", "2147483647"}) {
    expected.push_back(std::stoll(last));
    for (const char* end : {"]", " ]", "]       ", "]\n"}) {
      const nlohmann::json value = parse_json_with_ids(text + last + end, "text");
      ASSERT_TRUE(is_json_ids(value)) << last << end;
      EXPECT_TRUE(std::ranges::equal(json_ids(value), expected)) << last << end;
    }
    expected.pop_back();
  }
  // Any byte behind a number of any length: the same as without ids.
  for (int byte = 1; byte < 256; ++byte) {
    for (std::size_t size = 1; size <= 11; ++size) {
      const std::string odd = text + std::string("12345678901").substr(0, size) + static_cast<char>(byte) + "        ]";
      if (std::string(" \n\r\t").find(static_cast<char>(byte)) != std::string::npos || (byte >= '0' && byte <= '9')) {
        EXPECT_EQ(plain(parse_json_with_ids(odd, "text")), parse_json(odd, "text")) << odd;
      } else {
        EXPECT_THROW((void)parse_json_with_ids(odd, "text"), Error) << odd;
      }
    }
  }
}

TEST(ParseJsonWithIds, WhatIsWrongIsSaidOfTheWholeText) {
  const std::string ids = array_of(40);
  const JsonLimits limits{.bytes = 500, .values = 50};
  for (const std::string& text :
       std::vector<std::string>{"{\"a\":" + ids + ",}", "{\"a\":" + ids + "}]", "{\"a\":" + ids + ",\"\xff\":1}",
                                "[" + ids + std::string("\0]", 2), array_of(40, "07"), array_of(40, "+7"),
                                array_of(40, "7 7"), array_of(40, ""), array_of(40).substr(0, 60),
                                "[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,]", "[" + ids + ",\"", "[" + ids + ",\"\\",
                                "[" + ids + "," + array_of(30) + "]", "[" + ids + "\"" + std::string(500, 'x') + "\"]",
                                "[" + ids + "," + std::string(101, '[') + std::string(101, ']') + "]"}) {
    std::string expected;
    try {
      (void)parse_json(text, "text", limits);
    } catch (const Error& error) {
      expected = error.what();
    }
    ASSERT_FALSE(expected.empty()) << text;
    expect_error(Status::corrupt, {expected}, [&] { return parse_json_with_ids(text, "text", limits); });
  }
}

TEST(RegularFile, OthersAreRefusedAtOnce) {
  const TemporaryFolder folder;
  ASSERT_EQ(::mkfifo(folder.file("pipe").c_str(), 0600), 0);
  std::vector<std::string> others{folder.file("pipe")};
  for (const char* device : {"/dev/zero", "/dev/null"}) {
    if (std::filesystem::exists(device)) others.emplace_back(device);
  }
  for (const std::string& path : others) {
    expect_error(Status::io, {path, "not a file"}, [&] { return read_text_file(path); });
    expect_error(Status::io, {path, "not a file"}, [&] { return read_text_file_if_there(path); });
    expect_error(Status::io, {path, "not a file"}, [&] { return read_json_file(path); });
    expect_error(Status::io, {path, "not a file"}, [&] { return open_regular_file_to_append(path); });
  }
  expect_error(Status::io, {folder.path(), "directory"}, [&] { return read_text_file(folder.path()); });
  expect_error(Status::io, {"nowhere"}, [&] { return read_text_file(folder.file("nowhere")); });
  EXPECT_EQ(read_text_file_if_there(folder.file("nowhere")), std::nullopt);
  expect_error(Status::io, {"NUL"}, [&] { return read_text_file(folder.file(std::string_view("a\0b", 3))); });
}

TEST(RegularFile, IsReadWholeUpToALimit) {
  const TemporaryFolder folder;
  const std::string text(700'000, 'x');  // more than one read
  write_file(folder.file("text"), text);
  EXPECT_TRUE(read_text_file(folder.file("text")) == text);
  EXPECT_TRUE(read_text_file(folder.file("text"), text.size()) == text);
  EXPECT_TRUE(read_text_file_if_there(folder.file("text")) == text);
  expect_error(Status::unsupported, {folder.file("text"), "699999 bytes"},
               [&] { return read_text_file(folder.file("text"), text.size() - 1); });
}

}  // namespace
}  // namespace qdelta::testing
