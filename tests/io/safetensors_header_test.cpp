// Files spelled out, well-formed and not: every check of the header, with its status and its message.
#include "io/safetensors_header.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "io/safetensors.h"
#include "io_testing.h"

namespace qdelta {
namespace {

using testing::expect_error;
using testing::file_of;
using testing::FileInMemory;
using testing::header_of_bytes;
using testing::with_length;

void refuse(const std::string& contents, const std::vector<std::string>& pieces, Status status = Status::corrupt) {
  SCOPED_TRACE(contents.substr(0, 300));
  const FileInMemory file(contents);
  std::vector<std::string> expected = pieces;
  expected.emplace_back("label: ");
  expect_error(status, expected, [&] { return SafetensorsFile::parse(file.bytes(), "label"); });
}

void refuse_header(const std::string& header, const std::vector<std::string>& pieces) {
  refuse(file_of(header, 8), pieces);
}

// The entry {"x": ...} with 8 bytes of data.
void refuse_entry(const std::string& entry, const std::vector<std::string>& pieces, Status status = Status::corrupt) {
  std::vector<std::string> expected = pieces;
  expected.emplace_back("tensor \"x\"");
  refuse(file_of(R"({"x":)" + entry + "}", 8), expected, status);
}

void accept(const std::string& header, std::size_t data_bytes, const std::vector<std::string>& names) {
  const FileInMemory file(file_of(header, data_bytes));
  EXPECT_EQ(SafetensorsFile::parse(file.bytes(), "label").names(), names) << header;
}

TEST(SafetensorsHeader, AcceptsWhatTheFormatAllows) {
  accept("{}", 0, {});
  accept("{ \t\r\n }\n\t ", 0, {});
  accept(R"({"__metadata__":{}})", 0, {});
  accept(R"({"s":{"dtype":"F64","shape":[],"data_offsets":[0,8]}})", 8, {"s"});
  accept(R"({"x":{"data_offsets":[0,8],"shape":[2,1],"dtype":"F32"},"__metadata__":{"a":"b"}})", 8, {"x"});
  // In the order of the data, not of the header.
  accept(R"({"b":{"dtype":"U8","shape":[3],"data_offsets":[5,8]},"a":{"dtype":"U8","shape":[5],"data_offsets":[0,5]}})",
         8, {"a", "b"});
  // Without elements: before, between and after others, aligned or not, and with a zero beside large extents.
  accept(R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"e":{"dtype":"F64","shape":[0],"data_offsets":[3,3]},)"
         R"("b":{"dtype":"U8","shape":[5],"data_offsets":[3,8]},"f":{"dtype":"F32","shape":[4611686018427387,0],)"
         R"("data_offsets":[8,8]}})",
         8, {"a", "e", "b", "f"});
}

TEST(SafetensorsHeader, Escapes) {
  const FileInMemory file(file_of(R"({"\u0061\ud83d\ude00\"":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}})", 8));
  EXPECT_TRUE(SafetensorsFile::parse(file.bytes(), "label").contains("a\xf0\x9f\x98\x80\""));
}

TEST(SafetensorsHeader, Lengths) {
  refuse("", {"0 bytes, shorter than the 8"});
  refuse("1234567", {"7 bytes, shorter than the 8"});
  refuse(with_length(0, "{}"), {"length is 0"});
  refuse(with_length(100'000'001, "{}"), {"a header of 100000001 bytes; at most 100000000"});
  refuse(with_length(~std::uint64_t{0}, "{}"), {"a header of 18446744073709551615 bytes"});
  refuse(with_length(100'000'000, "{}"), {"100000000 bytes, but only 2 follow"});
  refuse(with_length(3, "{}"), {"3 bytes, but only 2 follow"});
  refuse(with_length(1, ""), {"1 bytes, but only 0 follow"});
}

TEST(SafetensorsHeader, NotAnObject) {
  refuse_header("[]", {"must start with '{'"});
  refuse_header(" {}", {"must start with '{'"});
  refuse_header("\xef\xbb\xbf{}", {"must start with '{'"});
  refuse_header("\"text\"", {"must start with '{'"});
}

TEST(SafetensorsHeader, NotUtf8) {
  refuse_header("{\"a\xff\":1}", {"not valid UTF-8 at byte 11"});
  refuse_header("{\"\xc3\":1}", {"not valid UTF-8 at byte 10"});   // a character cut short
  refuse_header("{\"\xc0\xaf\":1}", {"not valid UTF-8"});          // overlong
  refuse_header("{\"\xe0\x9f\xbf\":1}", {"not valid UTF-8"});      // overlong
  refuse_header("{\"\xed\xa0\x80\":1}", {"not valid UTF-8"});      // surrogate
  refuse_header("{\"\xf4\x90\x80\x80\":1}", {"not valid UTF-8"});  // above U+10FFFF
  refuse_header("{\"\xf0\x8f\xbf\xbf\":1}", {"not valid UTF-8"});  // overlong
  refuse(with_length(2, "{\xf0"), {"not valid UTF-8 at byte 9"});  // cut by the end
}

TEST(SafetensorsHeader, NotJson) {
  refuse_header("{", {"not valid JSON", "column"});
  refuse_header("{}}", {"not valid JSON"});
  refuse_header("{} {}", {"not valid JSON"});
  refuse_header("{'a':1}", {"not valid JSON"});
  refuse_header("{\"a\":", {"not valid JSON"});
  refuse_header("{/* comment */}", {"not valid JSON"});
  refuse_header("{\"a\":1e999}", {"not valid JSON", "1e999"});
  refuse_header(R"({"\ud800":1})", {"not valid JSON"});  // half of a surrogate pair
  refuse(file_of(std::string("{}\0garbage", 10), 0), {"not valid JSON: NUL at byte 10"});
  refuse(file_of(std::string("{\"a\0b\":1}", 9), 0), {"not valid JSON: NUL"});
}

TEST(SafetensorsHeader, DuplicateKeys) {
  const std::string entry = R"({"dtype":"U8","shape":[8],"data_offsets":[0,8]})";
  refuse_header(R"({"x":)" + entry + R"(,"x":)" + entry + "}", {"the key \"x\" appears twice"});
  refuse_header(R"({"x":)" + entry + R"(,"\u0078":)" + entry + "}", {"the key \"x\" appears twice"});
  refuse_header(R"({"__metadata__":{},"__metadata__":{}})", {"the key \"__metadata__\" appears twice"});
  refuse_header(R"({"__metadata__":{"k":"a","k":"a"}})", {"__metadata__: the key \"k\" appears twice"});
  refuse_entry(R"({"dtype":"U8","dtype":"U8","shape":[8],"data_offsets":[0,8]})", {"\"dtype\" appears twice"});
  refuse_entry(R"({"dtype":"U8","shape":[8],"shape":[8],"data_offsets":[0,8]})", {"\"shape\" appears twice"});
  refuse_entry(R"({"dtype":"U8","shape":[8],"data_offsets":[0,8],"data_offsets":[0,8]})",
               {"\"data_offsets\" appears twice"});
}

TEST(SafetensorsHeader, Metadata) {
  refuse_header(R"({"__metadata__":"text"})", {"__metadata__ must be an object of strings, not \"text\""});
  refuse_header(R"({"__metadata__":null})", {"__metadata__ must be an object of strings, not null"});
  refuse_header(R"({"__metadata__":[]})", {"__metadata__ must be an object of strings, not an array"});
  refuse_header(R"({"__metadata__":{"k":1}})", {"__metadata__: the value of \"k\" must be a string, not 1"});
  refuse_header(R"({"__metadata__":{"k":{}}})", {"the value of \"k\" must be a string, not an object"});
  refuse_header(R"({"__metadata__":{"k":[]}})", {"the value of \"k\" must be a string, not an array"});
}

TEST(SafetensorsHeader, Entries) {
  refuse_entry("1", {"must be an object with dtype, shape and data_offsets, not 1"});
  refuse_entry("[]", {"must be an object with dtype, shape and data_offsets, not an array"});
  refuse_entry("{}", {"dtype is missing"});
  refuse_entry(R"({"dtype":"U8","data_offsets":[0,8]})", {"shape is missing"});
  refuse_entry(R"({"dtype":"U8","shape":[8]})", {"data_offsets is missing"});
  refuse_entry(R"({"dtype":"U8","shape":[8],"data_offsets":[0,8],"extra":1})", {"unknown key \"extra\""});
}

TEST(SafetensorsHeader, Types) {
  const auto refuse_type = [](const std::string& dtype, const std::string& piece, Status status = Status::corrupt) {
    refuse_entry(R"({"dtype":)" + dtype + R"(,"shape":[8],"data_offsets":[0,8]})", {piece}, status);
  };
  refuse_type("\"F33\"", "unknown dtype \"F33\"");
  refuse_type("\"f32\"", "unknown dtype \"f32\"");
  refuse_type("\"\"", "unknown dtype \"\"");
  refuse_type("32", "dtype must be a string such as \"F32\", not 32");
  refuse_type("[]", "dtype must be a string such as \"F32\", not an array");
  refuse_type("{}", "dtype must be a string such as \"F32\", not an object");
  refuse_type("\"C64\"", "C64 of shape [8] takes 64 bytes");
  refuse_type("\"F4\"", "F4 of shape [8] takes 4 bytes");
  // Elements of less than a byte must fill whole ones.
  refuse_entry(R"({"dtype":"F6_E2M3","shape":[3],"data_offsets":[0,3]})", {"F6_E2M3 of shape [3]", "whole bytes"});
}

TEST(SafetensorsHeader, Shapes) {
  const auto refuse_shape = [](const std::string& shape, const std::string& piece, Status status = Status::corrupt) {
    refuse_entry(R"({"dtype":"U8","shape":)" + shape + R"(,"data_offsets":[0,8]})", {piece}, status);
  };
  refuse_shape("[-1]", "shape must hold non-negative integers, not -1");
  refuse_shape("[-0]", "shape must hold non-negative integers, not -0");
  refuse_shape("[8.0]", "shape must hold non-negative integers, not 8.0");
  refuse_shape("[1e1]", "shape must hold non-negative integers, not 1e1");
  refuse_shape("[true]", "shape must hold non-negative integers, not true");
  refuse_shape("[null]", "shape must hold non-negative integers, not null");
  refuse_shape("[\"8\"]", "shape must hold non-negative integers, not \"8\"");
  refuse_shape("[[8]]", "shape must hold non-negative integers, not an array");
  refuse_shape("8", "shape must be an array of integers, not 8");
  refuse_shape("null", "shape must be an array of integers, not null");
  refuse_shape("[18446744073709551616]", "shape must hold non-negative integers, not 18446744073709551616");
  refuse_shape("[18446744073709551615]", "more bytes than 64 bits can count");
  refuse_shape("[4294967296,4294967296]", "more bytes than 64 bits can count");
  refuse_shape("[4294967296,2147483648]", "more bytes than 64 bits can count");
  refuse_shape("[0,4294967296,4294967296]", "more bytes than 64 bits can count");  // strides would overflow
  refuse_shape("[1,1,1,1,1,1,8]", "has 7 dimensions; at most 6 are supported", Status::unsupported);
  // Fits as a count of elements, not as a count of bytes.
  refuse_entry(R"({"dtype":"F64","shape":[2305843009213693952],"data_offsets":[0,8]})", {"64 bits can count"});
}

TEST(SafetensorsHeader, Offsets) {
  const auto refuse_offsets = [](const std::string& offsets, const std::string& piece) {
    refuse_entry(R"({"dtype":"U8","shape":[8],"data_offsets":)" + offsets + "}", {piece});
  };
  refuse_offsets("[]", "must be two integers [begin, end], not 0");
  refuse_offsets("[0]", "must be two integers [begin, end], not 1");
  refuse_offsets("[0,8,8]", "must be two integers [begin, end], not 3");
  refuse_offsets("8", "data_offsets must be an array of two integers [begin, end], not 8");
  refuse_offsets("[-8,0]", "data_offsets must hold non-negative integers, not -8");
  refuse_offsets("[0,8.5]", "data_offsets must hold non-negative integers, not 8.5");
  refuse_offsets("[0,\"8\"]", "data_offsets must hold non-negative integers, not \"8\"");
  refuse_offsets("[8,0]", "data_offsets [8, 0] end before they begin");
  refuse_offsets("[0,9]", "data_offsets [0, 9] reach past the end of the file, which has 8 bytes of data");
  refuse_offsets("[18446744073709551608,18446744073709551615]", "reach past the end");
  refuse_offsets("[0,7]", "U8 of shape [8] takes 8 bytes, but data_offsets [0, 7] give it 7");
  refuse_entry(R"({"dtype":"F32","shape":[],"data_offsets":[0,8]})", {"F32 of shape [] takes 4 bytes"});
  refuse_entry(R"({"dtype":"F32","shape":[0],"data_offsets":[0,8]})", {"F32 of shape [0] takes 0 bytes"});
}

TEST(SafetensorsHeader, Coverage) {
  const auto refuse_pair = [](int begin_a, int end_a, int begin_b, int end_b, const std::string& piece) {
    refuse_header(header_of_bytes({{"a", begin_a, end_a}, {"b", begin_b, end_b}}), {piece});
  };
  refuse_pair(0, 5, 4, 8, R"(tensors "a" and "b" overlap: bytes [0, 5) and [4, 8))");
  refuse_pair(4, 8, 0, 5, R"(tensors "b" and "a" overlap: bytes [0, 5) and [4, 8))");
  refuse_pair(0, 8, 0, 8, "overlap");
  refuse_pair(0, 8, 2, 4, "overlap");
  refuse_pair(0, 8, 4, 4, "overlap");  // empty, but inside
  refuse_pair(0, 3, 4, 8, "bytes [3, 4) of the data, before tensor \"b\", belong to no tensor");
  refuse_pair(1, 4, 4, 8, "bytes [0, 1) of the data, before tensor \"a\", belong to no tensor");
  refuse_pair(0, 3, 3, 6, "the last 2 bytes of the file belong to no tensor");
  refuse_header("{}", {"the last 8 bytes of the file belong to no tensor"});
}

TEST(SafetensorsHeader, Alignment) {
  // The header is not padded, so the data starts at an odd byte.
  const std::string header = R"({"xy":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  ASSERT_EQ(header.size() % 8, 7u);
  refuse(with_length(header.size(), header) + std::string(8, '\1'),
         {"tensor \"xy\"", "starts at byte 63", "multiple of 4"});
  // The data starts well, but the tensor does not.
  refuse(
      file_of(
          R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"x":{"dtype":"F32","shape":[2],"data_offsets":[2,10]}})",
          10),
      {"tensor \"x\"", "not a multiple of 4, the size of F32"});
}

TEST(SafetensorsHeader, DeepNestingIsRefusedAtOnce) {
  const std::string deep(1'000'000, '[');
  refuse_header(R"({"x":)" + deep, {"must be an object"});
  refuse_header(R"({"x":{"shape":)" + deep, {"shape must hold non-negative integers, not an array"});
  std::string objects;
  for (int i = 0; i < 200'000; ++i) objects += R"({"a":)";
  refuse_header(objects, {"unknown key \"a\""});
}

TEST(SafetensorsHeader, MessagesStayShortAndOnOneLine) {
  const std::string much(1'000'000, '7');
  for (const std::string& header : {"{\"" + much + "\":1}", R"({"a":")" + much + "\"}", "{\"a\":" + much + "}",
                                    "{\"a\":0." + much + "}", "{\"a\":-" + much + "}", "{\"a\":" + much + "x}"}) {
    const FileInMemory file(file_of(header, 0));
    try {
      static_cast<void>(SafetensorsFile::parse(file.bytes(), "label"));
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_LT(std::string(error.what()).size(), 400u);
    }
  }
  refuse_header(R"({"line\nbreak":1})", {R"("line\x0abreak")"});
}

}  // namespace
}  // namespace qdelta
