// What is UTF-8 text and what is none: refused by its place, its looks and what to do, in every place that reads text.
#include "data/text_stream.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "data/documents.h"
#include "data/encode_file.h"
#include "data/tokenizer.h"
#include "data_testing.h"

namespace qdelta {
namespace {

using testing::expect_error;
using testing::gzip;
using testing::TemporaryFolder;
using testing::write_file;

// All of it, so many bytes at a time.
std::string read_stream(const std::string& path, TextBytes bytes, std::size_t at_once = 1U << 18U) {
  const auto stream = open_text_stream(path, bytes);
  std::vector<char> buffer(at_once);
  std::string text;
  while (const std::size_t got = stream->read(buffer)) text.append(buffer.data(), got);
  return text;
}

TEST(TextStream, TextPassesWhereverItIsCut) {
  using namespace std::string_literals;
  const TemporaryFolder folder;
  const std::string path = folder.file("a.txt");
  const std::string text = "a\xc3\xa9\xe6\xb2\xb3\xf0\x9f\x98\x80 \t\r\n\x1b[1m \0 PAR1 \xef\xbf\xbd\xf0\x9f\x98\x80"s;
  write_file(path, text);
  for (std::size_t at_once = 1; at_once < 9; ++at_once) EXPECT_EQ(read_stream(path, TextBytes::utf8, at_once), text);
  // What starts like a binary format, but has nothing that text has not.
  for (const char* start : {"PAR1 is a word", "GIF89a and so on", "BZh is one too", "%PDF-1.7 is a version", "MZ"}) {
    write_file(path, start);
    EXPECT_EQ(read_stream(path, TextBytes::utf8), start);
  }
  write_file(path, "");
  EXPECT_EQ(read_stream(path, TextBytes::utf8), "");
  write_file(path, "one \0 in a text"s + std::string(100, 'x'));
  EXPECT_NO_THROW(static_cast<void>(read_stream(path, TextBytes::utf8)));
}

TEST(TextStream, TheOffsetIsThatOfTheFirstBadByte) {
  const TemporaryFolder folder;
  const std::string path = folder.file("a.txt");
  struct Case {
    std::string contents;
    std::string byte;
    std::size_t at;
  };
  const std::string good(1000, 'x');
  for (const Case& one :
       {Case{good + "\xff", "0xff", 1000}, Case{good + "\xe9t\xe9", "0xe9", 1000}, Case{good + "\xc3", "0xc3", 1000},
        Case{good + "\xf0\x9f\x98", "0xf0", 1000}, Case{"\xf0\x9f\x98z" + good, "0xf0", 0},
        Case{"ab\xed\xa0\x80", "0xed", 2}, Case{good + "\x80", "0x80", 1000}}) {
    write_file(path, one.contents);
    for (const std::size_t at_once : {1U, 2U, 3U, 7U, 4096U}) {
      expect_error(Status::corrupt,
                   {path, "byte " + one.byte + " at offset " + std::to_string(one.at) + ".", "iconv", "--bytes"},
                   [&] { return read_stream(path, TextBytes::utf8, at_once); });
    }
    EXPECT_EQ(read_stream(path, TextBytes::any), one.contents);
  }
}

TEST(TextStream, FormatsAreNamed) {
  using namespace std::string_literals;
  const TemporaryFolder folder;
  struct Case {
    std::string contents, looks_like, advice;
  };
  std::string tar(512, '\0');
  tar.replace(0, 5, "a.txt").replace(257, 5, "ustar");
  for (const Case& one :
       {Case{"PAR1\x15\x04\x15\x10"s, "Parquet", "read_parquet"}, Case{"ARROW1\0\0"s, "Arrow", "read_feather"},
        Case{"%PDF-1.7\n%\xe2\xe3\xcf\xd3"s, "PDF", "pdftotext"},
        Case{"\x7f"
             "ELF\x02\x01\x01"s,
             "ELF", "no text"},
        Case{"\x89PNG\r\n\x1a\n"s, "PNG", "no text"}, Case{"\xff\xd8\xff\xe0\0\x10JFIF"s, "JPEG", "no text"},
        Case{"GIF89a\x01\0\x01\0"s, "GIF", "no text"}, Case{"PK\x03\x04\x14\0"s, "zip", "extract"},
        Case{"BZh91AY&SY\x01\xf0"s, "bzip2", "uncompress"}, Case{"SQLite format 3\0\x10"s, "SQLite", "JSON lines"},
        Case{tar, "tar", "extract"}, Case{"\xff\xfeh\0i\0"s, "UTF-16", "iconv -f UTF-16"},
        Case{"h\0e\0l\0l\0o\0 \0y\0o\0u\0"s, "UTF-16", "iconv"}, Case{"\x93NUMPY\x01\0"s, "NumPy", "shards"},
        Case{"\x80\0\0\0\0\0\0\0{\"a\":"s, "safetensors", "no text"}}) {
    for (const char* name : {"a.txt", "a.jsonl"}) {
      const std::string path = folder.file(name);
      write_file(path, one.contents);
      const auto read = [&] { return read_stream(path, TextBytes::utf8); };
      expect_error(Status::corrupt, {path, "not UTF-8 text", "at offset ", one.looks_like, one.advice, "--bytes"},
                   read);
      expect_error(Status::corrupt, {one.looks_like}, [&] { check_starts_as_text(path); });
    }
  }
}

TEST(TextStream, InsideOfWhatIsCompressed) {
  const TemporaryFolder folder;
  const std::string path = folder.file("a.txt");  // whatever the name says
  write_file(path, gzip("fine"));
  EXPECT_EQ(read_stream(path, TextBytes::utf8), "fine");
  write_file(path, gzip(gzip("fine")));
  expect_error(Status::corrupt, {path, "gzip", "compressed twice"}, [&] { return read_stream(path, TextBytes::utf8); });
  write_file(path, std::string("PAR1\x15", 5));
  expect_error(Status::corrupt, {"byte 0x15 at offset 4."}, [&] { return read_stream(path, TextBytes::utf8); });
  write_file(path, gzip("fine \xff"));
  expect_error(Status::corrupt, {path, "offset 5 of what is compressed in it"},
               [&] { return read_stream(path, TextBytes::utf8); });
}

TEST(TextStream, EveryReaderOfTextRefuses) {
  const TemporaryFolder folder;
  const auto tokenizer = load_tokenizer("bytes");
  for (const char* name : {"a.txt", "a.jsonl"}) {
    const std::string path = folder.file(name);
    write_file(path, std::string("PAR1\x15\x04\x15\x10\xff", 9));
    expect_error(Status::corrupt, {path, "Parquet"}, [&] { return encode_file(*tokenizer, path, "text"); });
    expect_error(Status::corrupt, {path, "Parquet"}, [&] {
      std::string document;
      return DocumentReader(path, {}).next(document);
    });
  }
  const std::string path = folder.file("a.txt");
  EXPECT_EQ(encode_file(*tokenizer, path, "text", TextBytes::any).ids.size(), 9U);
  DocumentOptions any;
  any.bytes = TextBytes::any;
  std::string document;
  EXPECT_TRUE(DocumentReader(path, any).next(document));
  EXPECT_EQ(document.size(), 9U);
}

}  // namespace
}  // namespace qdelta
