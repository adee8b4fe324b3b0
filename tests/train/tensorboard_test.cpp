// TensorBoard's files: the checksum against published vectors, events against bytes laid out by hand.
#include "train/tensorboard.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>

#include "io/io_testing.h"

namespace qdelta::testing {
namespace {

// The vectors of RFC 3720, B.4, and the usual check value.
TEST(Crc32c, KnownVectors) {
  EXPECT_EQ(crc32c(""), 0U);
  EXPECT_EQ(crc32c("123456789"), 0xe3069283U);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aaU);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43U);
  std::string rising;
  for (char c = 0; c < 32; ++c) rising.push_back(c);
  EXPECT_EQ(crc32c(rising), 0x46dd794eU);
  std::string falling(rising.rbegin(), rising.rend());
  EXPECT_EQ(crc32c(falling), 0x113fdb5cU);
}

// Rotated right by 15, plus a constant: of zero only the constant is left.
TEST(Crc32c, MaskedAsTensorFlowDoes) {
  EXPECT_EQ(masked_crc32c(""), 0xa282ead8U);
  const std::uint32_t crc = crc32c("foo");
  EXPECT_EQ(masked_crc32c("foo"), ((crc >> 15U) | (crc << 17U)) + 0xa282ead8U);
}

std::string bytes(std::initializer_list<int> values) {
  std::string result;
  for (const int value : values) result.push_back(static_cast<char>(value));
  return result;
}

TEST(TensorBoardEvent, FileVersion) {
  // 1.0 as a double is 3f f0 00 .. 00.
  EXPECT_EQ(file_version_event(1), bytes({0x09, 0, 0, 0, 0, 0, 0, 0xf0, 0x3f, 0x1a, 13}) + "brain.Event:2");
}

TEST(TensorBoardEvent, Scalars) {
  // Step 300 is the varint ac 02; 0.5 as a float is 3f 00 00 00; -2 is c0 00 00 00.
  const std::string value_1 = bytes({0x0a, 4}) + "loss" + bytes({0x15, 0, 0, 0, 0x3f});
  const std::string value_2 = bytes({0x0a, 2}) + "lr" + bytes({0x15, 0, 0, 0, 0xc0});
  const std::string summary = bytes({0x0a, 11}) + value_1 + bytes({0x0a, 9}) + value_2;
  EXPECT_EQ(scalars_event(1, 300, {{"loss", 0.5}, {"lr", -2}}),
            bytes({0x09, 0, 0, 0, 0, 0, 0, 0xf0, 0x3f, 0x10, 0xac, 0x02, 0x2a, 24}) + summary);
}

TEST(TensorBoardEvent, SessionStart) {
  EXPECT_EQ(session_start_event(1, 5), bytes({0x09, 0, 0, 0, 0, 0, 0, 0xf0, 0x3f, 0x10, 5, 0x3a, 2, 0x08, 1}));
}

// The tag, a tensor with one string, and the name of the plugin. Lines are indented: Markdown for "as it is".
TEST(TensorBoardEvent, Text) {
  const std::string tensor = bytes({0x08, 7, 0x12, 4, 0x12, 2, 0x08, 1, 0x42, 11}) + "    a\n    b";
  const std::string metadata = bytes({0x0a, 6, 0x0a, 4}) + "text" + bytes({0x20, 2});
  const std::string value = bytes({0x0a, 1}) + "t" + bytes({0x42, 21}) + tensor + bytes({0x4a, 10}) + metadata;
  EXPECT_EQ(text_event(1, 3, "t", "a\nb"),
            bytes({0x09, 0, 0, 0, 0, 0, 0, 0xf0, 0x3f, 0x10, 3, 0x2a, 40, 0x0a, 38}) + value);
}

TEST(TensorBoardEvent, SettingsAreNumbersTruthValuesOrTexts) {
  const std::string event = settings_event(1, {{"lr", "0.5"}, {"tie", "true"}, {"mlp", "false"}, {"rule", "q_delta"}});
  const auto entry = [](const std::string& name, const std::string& value) {
    const std::string inner =
        bytes({0x0a, static_cast<int>(name.size())}) + name + bytes({0x12, static_cast<int>(value.size())}) + value;
    return bytes({0x0a, static_cast<int>(inner.size())}) + inner;
  };
  const std::string start = entry("lr", bytes({0x11, 0, 0, 0, 0, 0, 0, 0xe0, 0x3f})) + entry("tie", bytes({0x20, 1})) +
                            entry("mlp", bytes({0x20, 0})) + entry("rule", bytes({0x1a, 7}) + "q_delta") +
                            bytes({0x29, 0, 0, 0, 0, 0, 0, 0xf0, 0x3f});
  const std::string data = bytes({0x1a, static_cast<int>(start.size())}) + start;
  EXPECT_NE(event.find(bytes({0x0a, 7}) + "hparams" + bytes({0x12, static_cast<int>(data.size())}) + data),
            std::string::npos);
  EXPECT_NE(event.find("_hparams_/session_start_info"), std::string::npos);
}

TEST(TensorBoardEvent, LargeStepsAndLongTags) {
  const std::string tag(200, 't');
  const std::string event = scalars_event(0, std::numeric_limits<std::int64_t>::max(), {{tag, 1}});
  EXPECT_NE(event.find(bytes({0x10, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f, 0x2a})), std::string::npos);
  EXPECT_NE(event.find(bytes({0x0a, 0xc8, 0x01}) + tag), std::string::npos);
}

std::uint32_t word_at(const std::string& from, std::size_t at) {
  std::uint32_t word = 0;
  std::memcpy(&word, from.data() + at, 4);
  return word;
}

TEST(TfRecord, HasLengthAndBothChecksums) {
  const std::string record = tfrecord("abc");
  ASSERT_EQ(record.size(), 8U + 4 + 3 + 4);
  EXPECT_EQ(record.substr(0, 8), bytes({3, 0, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(word_at(record, 8), masked_crc32c(record.substr(0, 8)));
  EXPECT_EQ(record.substr(12, 3), "abc");
  EXPECT_EQ(word_at(record, 15), masked_crc32c("abc"));
}

// The events of a file; a wrong checksum is a failure.
std::vector<std::string> events_of(const std::string& path) {
  const std::string contents = read_file(path);
  std::vector<std::string> events;
  for (std::size_t at = 0; at + 16 <= contents.size();) {
    std::uint64_t length = 0;
    std::memcpy(&length, contents.data() + at, 8);
    EXPECT_EQ(word_at(contents, at + 8), masked_crc32c(contents.substr(at, 8)));
    events.push_back(contents.substr(at + 12, length));
    EXPECT_EQ(word_at(contents, at + 12 + length), masked_crc32c(events.back()));
    at += 16 + length;
  }
  return events;
}

TEST(TensorBoardWriter, WritesAFileThatReadersFind) {
  const TemporaryFolder folder;
  const std::string runs = folder.file("runs/a");
  TensorBoardWriter writer(runs);
  EXPECT_NE(writer.path().find("runs/a/events.out.tfevents."), std::string::npos);
  writer.write(1, {{"train/loss", 9.5}, {"train/lr", 1e-3}});
  const std::vector<std::string> events = events_of(writer.path());  // while it is still open
  ASSERT_EQ(events.size(), 2U);
  EXPECT_TRUE(events[0].ends_with("brain.Event:2"));
  EXPECT_NE(events[1].find("train/loss"), std::string::npos);
  EXPECT_NE(events[1].find("train/lr"), std::string::npos);
}

TEST(TensorBoardWriter, WritesTextsAndSettings) {
  const TemporaryFolder folder;
  TensorBoardWriter writer(folder.path());
  writer.write_settings({{"steps", "5"}});
  writer.write_text(5, "samples/text", "Once upon a time");
  const std::vector<std::string> events = events_of(writer.path());
  ASSERT_EQ(events.size(), 3U);
  EXPECT_NE(events[1].find("hparams"), std::string::npos);
  EXPECT_NE(events[2].find("Once upon a time"), std::string::npos);
}

TEST(TensorBoardWriter, TwoInTheSameSecondHaveTwoFiles) {
  const TemporaryFolder folder;
  const TensorBoardWriter one(folder.path());
  const TensorBoardWriter two(folder.path());
  EXPECT_NE(one.path(), two.path());
  EXPECT_EQ(folder.count(), 2);
}

TEST(TensorBoardWriter, AResumedRunTellsReadersToForgetLaterSteps) {
  const TemporaryFolder folder;
  TensorBoardWriter writer(folder.path(), 41);
  writer.write(42, {{"loss", 1}});
  const std::vector<std::string> events = events_of(writer.path());
  ASSERT_EQ(events.size(), 3U);
  EXPECT_TRUE(events[1].ends_with(bytes({0x10, 42, 0x3a, 2, 0x08, 1})));
}

TEST(TensorBoardWriter, SaysWhereItCannotWrite) {
  const TemporaryFolder folder;
  write_file(folder.file("file"), "");
  expect_error(Status::io, {folder.file("file")}, [&] { return TensorBoardWriter(folder.file("file/sub")); });
}

}  // namespace
}  // namespace qdelta::testing
