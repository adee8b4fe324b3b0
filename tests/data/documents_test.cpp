// Documents out of files: text and JSON lines, plain and compressed, whole and broken.
#include "data/documents.h"

#include <gtest/gtest.h>
#include <lzma.h>
#include <zlib.h>
#include <zstd.h>

#include <functional>
#include <string>
#include <vector>

#include "data/byte_tokenizer.h"
#include "data/encode_file.h"
#include "data_testing.h"

namespace qdelta {
namespace {

using testing::expect_error;
using testing::gzip;
using testing::TemporaryFolder;
using testing::write_file;
using Texts = std::vector<std::string>;

std::string xz(const std::string& text) {
  std::string out(lzma_stream_buffer_bound(text.size()), '\0');
  std::size_t size = 0;
  EXPECT_EQ(lzma_easy_buffer_encode(1, LZMA_CHECK_CRC64, nullptr, reinterpret_cast<const std::uint8_t*>(text.data()),
                                    text.size(), reinterpret_cast<std::uint8_t*>(out.data()), &size, out.size()),
            LZMA_OK);
  out.resize(size);
  return out;
}

std::string zstd(const std::string& text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3));
  return out;
}

struct Compression {
  const char* suffix;
  std::function<std::string(const std::string&)> compress;
};
std::vector<Compression> compressions() {
  return {{"", [](const std::string& text) { return text; }}, {".gz", gzip}, {".xz", xz}, {".zst", zstd}};
}

Texts read_all(const std::string& path, const DocumentOptions& options = {}, std::int64_t* empty = nullptr) {
  DocumentReader reader(path, options);
  Texts texts;
  std::string text;
  while (reader.next(text)) texts.push_back(text);
  EXPECT_FALSE(reader.next(text));  // the end stays the end
  EXPECT_EQ(reader.consumed(), std::filesystem::file_size(path));
  if (empty != nullptr) *empty = reader.empty();
  return texts;
}

// More than any buffer on the way, and not too easy to compress.
std::string long_text() {
  Random random(2);
  std::string text;
  while (text.size() < 3'000'000)
    text += std::to_string(random.integer(0, 999999)) + (testing::chance(random, 0.1) ? "\n" : " ");
  return text;
}

TEST(Documents, TextIsOneDocument) {
  const TemporaryFolder folder;
  const std::string text = long_text();
  for (const auto& [suffix, compress] : compressions()) {
    for (const std::string& contents : {std::string("hello\n\nworld\n"), std::string("x"), text}) {
      const std::string path = folder.file(std::string("a.txt") + suffix);
      write_file(path, compress(contents));
      EXPECT_EQ(read_all(path), Texts{contents}) << suffix;
    }
    const std::string path = folder.file(std::string("b.txt") + suffix);
    write_file(path, compress(""));
    EXPECT_EQ(read_all(path), Texts{}) << suffix;
  }
}

TEST(Documents, CompressionIsToldByTheContents) {
  const TemporaryFolder folder;
  write_file(folder.file("a.txt"), gzip("hello"));
  EXPECT_EQ(read_all(folder.file("a.txt")), Texts{"hello"});
  write_file(folder.file("b.gz"), "not gzip");
  EXPECT_EQ(read_all(folder.file("b.gz")), Texts{"not gzip"});
}

TEST(Documents, PartsThatFollowOneAnother) {
  const TemporaryFolder folder;
  for (const auto& [suffix, compress] : compressions()) {
    const std::string path = folder.file(std::string("a.txt") + suffix);
    write_file(path, compress("one, ") + compress("two, ") + compress(long_text()));
    EXPECT_EQ(read_all(path), Texts{"one, two, " + long_text()}) << suffix;
  }
}

TEST(Documents, CutAndDamagedCompression) {
  const TemporaryFolder folder;
  const std::string text = long_text();
  for (const auto& [suffix, compress] : compressions()) {
    if (*suffix == '\0') continue;
    const std::string whole = compress(text);
    const std::string path = folder.file(std::string("a.txt") + suffix);
    for (const std::size_t size : {whole.size() / 3, whole.size() - 1, std::size_t{20}}) {
      write_file(path, whole.substr(0, size));
      expect_error(Status::corrupt, {path, "too early"}, [&] { return read_all(path); });
    }
    std::string damaged = whole;
    for (std::size_t i = 0; i < 64; ++i) damaged[damaged.size() / 2 + i] = static_cast<char>(i * 37);
    write_file(path, damaged);
    expect_error(Status::corrupt, {path}, [&] { return read_all(path); });
  }
}

TEST(Documents, Separators) {
  const TemporaryFolder folder;
  const std::string path = folder.file("a.txt");
  DocumentOptions options;
  options.separator = "<|end|>";
  std::int64_t empty = 0;
  write_file(path, "one<|end|>two\n<|end|><|end|><|en");
  EXPECT_EQ(read_all(path, options, &empty), (Texts{"one", "two\n", "<|en"}));
  EXPECT_EQ(empty, 1);
  // Wherever the buffer ends.
  Texts expected;
  std::string contents;
  for (int i = 0; i < 2000; ++i) {
    expected.push_back(std::string(static_cast<std::size_t>(1 + i % 997), 'x') + std::to_string(i));
    contents += expected.back() + "<|end|>";
  }
  write_file(path, contents);
  EXPECT_EQ(read_all(path, options), expected);
}

TEST(Documents, Paragraphs) {
  const TemporaryFolder folder;
  const std::string path = folder.file("a.txt");
  DocumentOptions options;
  options.paragraphs = true;
  write_file(path, "\n\none\ntwo\n\n  \t\n\nthree\r\n\r\nfour");
  EXPECT_EQ(read_all(path, options), (Texts{"one\ntwo", "three\r", "four"}));
  write_file(path, "\n \n");
  EXPECT_EQ(read_all(path, options), Texts{});
}

TEST(Documents, JsonLines) {
  const TemporaryFolder folder;
  const std::string contents =
      "{\"text\": \"one\\n\\u00e9\", \"id\": 1}\n\n  \r\n{\"id\": 2, \"text\": \"\"}\n{\"text\": \"\xf0\x9f\x98\x80\"}";
  for (const auto& [suffix, compress] : compressions()) {
    for (const char* name : {"a.jsonl", "a.ndjson"}) {
      const std::string path = folder.file(std::string(name) + suffix);
      write_file(path, compress(contents));
      std::int64_t empty = 0;
      EXPECT_EQ(read_all(path, {}, &empty), (Texts{"one\n\xc3\xa9", "\xf0\x9f\x98\x80"})) << path;
      EXPECT_EQ(empty, 1);
    }
  }
  DocumentOptions options;
  options.format = DocumentFormat::json_lines;
  options.text_key = "body";
  write_file(folder.file("b"), "{\"body\": \"x\"}\r\n");
  EXPECT_EQ(read_all(folder.file("b"), options), Texts{"x"});
  options.format = DocumentFormat::text;
  write_file(folder.file("c.jsonl"), "{}");
  EXPECT_EQ(read_all(folder.file("c.jsonl"), options), Texts{"{}"});
}

TEST(Documents, BrokenJsonLines) {
  const TemporaryFolder folder;
  const std::string path = folder.file("a.jsonl");
  const auto refuse = [&](const std::string& line, const std::vector<std::string>& pieces) {
    write_file(path, "{\"text\": \"fine\"}\n" + line + "\n");
    std::vector<std::string> all = pieces;
    all.push_back(path + ": line 2: ");
    expect_error(Status::corrupt, all, [&] { return read_all(path); });
  };
  refuse("{\"text\": ", {"not valid JSON"});
  refuse("{\"text\": \"\\ud800\"}", {"not valid JSON", "surrogate"});
  refuse("[1]", {"array", "object"});
  refuse("{\"body\": \"x\", \"n\": 1}", {"no \"text\"", "--text-key", "such as \"body\""});
  refuse("{\"text\": 1}", {"\"text\" is a number"});
  // Bytes that are not UTF-8 are none of JSON's either, where they are let in.
  write_file(path, "{\"text\": \"\xff\"}\n");
  expect_error(Status::corrupt, {path, "byte 0xff at offset 10"}, [&] { return read_all(path); });
  DocumentOptions any;
  any.bytes = TextBytes::any;
  expect_error(Status::corrupt, {path, "line 1", "not valid UTF-8"}, [&] { return read_all(path, any); });
}

TEST(EncodeFile, TextIsOneDocumentAndJsonLinesAreOneEach) {
  const TemporaryFolder folder;
  const ByteTokenizer tokenizer;
  for (const auto& [suffix, compress] : compressions()) {
    const std::string text = folder.file(std::string("a.txt") + suffix);
    write_file(text, compress("ab\n\nc"));
    const EncodedFile whole = encode_file(tokenizer, text, "text");
    EXPECT_EQ(whole.ids, (std::vector<std::int32_t>{'a', 'b', '\n', '\n', 'c'})) << suffix;
    EXPECT_EQ(whole.ends, std::vector<std::size_t>{5});
    EXPECT_EQ(whole.bytes, 5U);
    const std::string lines = folder.file(std::string("a.jsonl") + suffix);
    write_file(lines, compress("{\"body\": \"ab\"}\n{\"body\": \"\"}\n{\"body\": \"c\"}\n"));
    const EncodedFile documents = encode_file(tokenizer, lines, "body");
    EXPECT_EQ(documents.ids, (std::vector<std::int32_t>{'a', 'b', 257, 'c', 257})) << suffix;
    EXPECT_EQ(documents.ends, (std::vector<std::size_t>{3, 5}));
    EXPECT_EQ(documents.bytes, 3U);
  }
  // Longer than what is read at a time.
  const std::string longer(5'000'001, 'x');
  write_file(folder.file("b.txt"), longer);
  EXPECT_EQ(tokenizer.decode(encode_file(tokenizer, folder.file("b.txt"), "text").ids), longer);
  write_file(folder.file("empty.txt"), "");
  EXPECT_TRUE(encode_file(tokenizer, folder.file("empty.txt"), "text").ends.empty());
  expect_error(Status::io, {folder.path(), "directory"}, [&] { return encode_file(tokenizer, folder.path(), "text"); });
}

// A small file may uncompress to any amount, and a value takes more memory than its text.
TEST(Documents, JsonLinesHaveLimits) {
  const TemporaryFolder folder;
  const std::string path = folder.file("a.jsonl.gz");
  const auto refuse = [&](const std::string& line, const std::vector<std::string>& pieces, Status status) {
    write_file(path, gzip("{\"text\": \"first\"}\n" + line + "\n"));
    DocumentReader reader(path, {});
    std::string document;
    ASSERT_TRUE(reader.next(document));
    expect_error(status, pieces, [&] { return reader.next(document); });
  };
  refuse("{\"text\": \"x\", \"more\": " + std::string(100'000, '[') + std::string(100'000, ']') + "}",
         {path, "line 2", "nested more than 100"}, Status::corrupt);
  refuse("{\"text\": \"x\", \"more\": [0" + std::string(3'000'000, ',') + "]}", {path, "line 2", "JSON values"},
         Status::corrupt);
  refuse("{\"text\": \"" + std::string(std::size_t{68} << 20U, 'x') + "\"}", {path, "line 2", "67108864 bytes"},
         Status::unsupported);
}

TEST(Documents, FilesThatCannotBeRead) {
  const TemporaryFolder folder;
  expect_error(Status::io, {"nowhere"}, [&] { return DocumentReader(folder.file("nowhere"), {}); });
  expect_error(Status::io, {folder.path()}, [&] { return DocumentReader(folder.path(), {}); });
  if (std::filesystem::exists("/dev/null")) {
    expect_error(Status::io, {"/dev/null", "not a file"}, [] { return DocumentReader("/dev/null", {}); });
  }
}

}  // namespace
}  // namespace qdelta
