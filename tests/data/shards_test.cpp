// Shards: what is written is read, and every kind of damage is seen.
#include "data/shards.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "core/memory.h"
#include "data/byte_tokenizer.h"
#include "data/shard_format.h"
#include "data/tokenizer.h"
#include "data_testing.h"

namespace qdelta {
namespace {

namespace fs = std::filesystem;

using testing::expect_error;
using testing::fixture;
using testing::read_file;
using testing::TemporaryFolder;
using testing::write_counting;
using testing::write_file;
using Ids = std::vector<std::int32_t>;

Ids all_tokens(const TokenDataset& dataset) {
  Ids ids(static_cast<std::size_t>(dataset.tokens()));
  dataset.copy(0, ids);
  return ids;
}

std::vector<std::int64_t> starts(const TokenDataset& dataset, std::int64_t begin, std::int64_t end) {
  std::vector<std::int64_t> found;
  dataset.for_each_document_start(begin, end, [&](std::int64_t position) { found.push_back(position); });
  return found;
}

TEST(Shards, RoundTrip) {
  for (const std::int32_t vocab_size : {10, 65536, 65537, 2'000'000'000}) {
    const TemporaryFolder folder;
    const Ids a = {0, vocab_size - 1, 3};
    const Ids b = {vocab_size / 2};
    const Ids c = {1, 2, 3, 4, 5};
    ShardWriter writer({folder.path(), "test", vocab_size, 0x1234567890abcdefU, 1000, false});
    for (const Ids& document : {a, b, c}) writer.add(document);
    const ShardWriter::Totals totals = writer.finish();
    EXPECT_EQ(totals.tokens, 9);
    EXPECT_EQ(totals.documents, 3);
    EXPECT_EQ(totals.shards, 1);
    for (const std::string& path : {folder.path(), folder.file("tokens-00000.qdt")}) {
      const TokenDataset dataset = TokenDataset::open(path);
      EXPECT_EQ(dataset.tokens(), 9);
      EXPECT_EQ(dataset.documents(), 3);
      EXPECT_EQ(dataset.vocab_size(), vocab_size);
      EXPECT_EQ(dataset.fingerprint(), 0x1234567890abcdefU);
      EXPECT_EQ(all_tokens(dataset), (Ids{0, vocab_size - 1, 3, vocab_size / 2, 1, 2, 3, 4, 5}));
      EXPECT_EQ(starts(dataset, 0, 9), (std::vector<std::int64_t>{0, 3, 4}));
      EXPECT_NO_THROW(dataset.verify());
    }
    EXPECT_EQ(fs::file_size(folder.file("tokens-00000.qdt")), 64 + (vocab_size <= 65536 ? 24 : 40) + 32);
  }
}

TEST(Shards, SeveralReadAsOne) {
  const std::vector<std::int64_t> lengths = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9};
  const TemporaryFolder one;
  const TemporaryFolder many;
  write_counting(one.path(), lengths, 1000, 1000);
  write_counting(many.path(), lengths, 1000, 7);
  const TokenDataset whole = TokenDataset::open(one.path());
  const TokenDataset parts = TokenDataset::open(many.path());
  EXPECT_EQ(whole.shards().size(), 1U);
  EXPECT_GT(parts.shards().size(), 5U);
  EXPECT_EQ(parts.tokens(), whole.tokens());
  EXPECT_EQ(parts.documents(), whole.documents());
  EXPECT_EQ(all_tokens(parts), all_tokens(whole));
  for (std::int64_t begin = 0; begin <= whole.tokens(); ++begin) {
    for (std::int64_t end = begin; end <= whole.tokens(); ++end) {
      Ids a(static_cast<std::size_t>(end - begin));
      Ids b = a;
      whole.copy(begin, a);
      parts.copy(begin, b);
      ASSERT_EQ(a, b) << begin << " to " << end;
      ASSERT_EQ(starts(parts, begin, end), starts(whole, begin, end)) << begin << " to " << end;
    }
  }
  // Also when they are named one by one.
  std::vector<std::string> paths;
  for (const TokenShard& shard : parts.shards()) paths.push_back(shard.path());
  EXPECT_EQ(all_tokens(TokenDataset::open(paths)), all_tokens(whole));
  expect_error(Status::invalid_argument, {"tokens [0, 77)"}, [&] {
    Ids past(2);
    parts.copy(76, past);
    return 0;
  });
}

TEST(Shards, DocumentsDoNotCross) {
  const TemporaryFolder folder;
  write_counting(folder.path(), {3, 20, 3, 3, 1}, 100, 5);
  std::vector<std::int64_t> sizes;
  const TokenDataset dataset = TokenDataset::open(folder.path());
  for (const TokenShard& shard : dataset.shards()) sizes.push_back(shard.tokens());
  EXPECT_EQ(sizes, (std::vector<std::int64_t>{23, 6, 1}));
}

TEST(ShardWriter, RefusesWhatCannotBe) {
  const TemporaryFolder folder;
  ShardWriter writer({folder.path(), "test", 10, 0, 100, false});
  expect_error(Status::invalid_argument, {"id 10"}, [&] { return writer.add(Ids{10}), 0; });
  expect_error(Status::invalid_argument, {"id -1"}, [&] { return writer.add(Ids{-1}), 0; });
  expect_error(Status::invalid_argument, {"without tokens"}, [&] { return writer.add(Ids{}), 0; });
  expect_error(Status::invalid_argument, {"no documents"}, [&] { return writer.finish(); });
  expect_error(Status::invalid_argument, {"vocabulary"}, [&] {
    return ShardWriter({folder.path(), "", 0, 0, 1, false});
  });
  expect_error(Status::invalid_argument, {"shard"}, [&] { return ShardWriter({folder.path(), "", 1, 0, 0, false}); });
  write_file(folder.file("file"), "");
  expect_error(Status::io, {"file/x"}, [&] { return ShardWriter({folder.file("file/x"), "", 1, 0, 1, false}); });
}

TEST(ShardWriter, ReplacesOnlyWhenTold) {
  const TemporaryFolder folder;
  write_counting(folder.path(), {5, 5, 5}, 100, 5);
  expect_error(Status::invalid_argument, {"already", "--force"}, [&] {
    return ShardWriter({folder.path(), "", 100, 0, 5, false});
  });
  EXPECT_EQ(TokenDataset::open(folder.path()).tokens(), 15);
  ShardWriter writer({folder.path(), "", 100, 0, 5, true});
  // While it is being written there is nothing to read by mistake.
  expect_error(Status::invalid_argument, {"no shards.json", "did not finish"},
               [&] { return TokenDataset::open(folder.path()); });
  writer.add(Ids{1, 2});
  writer.finish();
  EXPECT_EQ(TokenDataset::open(folder.path()).tokens(), 2);
  EXPECT_FALSE(fs::exists(folder.file("tokens-00001.qdt")));
}

TEST(ShardWriter, AnInterruptedRunCanBeRepeated) {
  const TemporaryFolder folder;
  {
    ShardWriter writer({folder.path(), "", 100, 0, 2, false});
    for (int i = 0; i < 5; ++i) writer.add(Ids{1, 2});
  }
  EXPECT_TRUE(fs::exists(folder.file("tokens-00004.qdt")));
  ShardWriter writer({folder.path(), "", 100, 0, 2, false});
  writer.add(Ids{7, 8});
  writer.finish();
  EXPECT_EQ(all_tokens(TokenDataset::open(folder.path())), (Ids{7, 8}));
  EXPECT_FALSE(fs::exists(folder.file("tokens-00004.qdt")));
}

void expect_every_flip_seen(const std::string& good) {
  for (std::size_t bit = 0; bit < good.size() * 8; ++bit) {
    std::string file = good;
    file[bit / 8] = static_cast<char>(file[bit / 8] ^ (1 << (bit % 8)));
    AlignedBuffer buffer(file.size());
    std::memcpy(buffer.data(), file.data(), file.size());
    try {
      const TokenShard shard = TokenShard::parse({buffer.data(), buffer.size()}, "label");
      shard.verify();  // in the tokens, only this sees it
      ADD_FAILURE() << "bit " << bit;
    } catch (const Error& error) {
      EXPECT_EQ(error.status(), Status::corrupt) << error.what();
    }
  }
}

// A good shard, and what becomes of it.
class Damage : public ::testing::Test {
 protected:
  Damage() {
    write_counting(folder_.path(), {3, 2, 4}, 1000, 100);
    good_ = read_file(folder_.file("tokens-00000.qdt"));
  }
  // Puts the checksum right, so that the check behind it is reached.
  static void seal(std::string& file) {
    ShardHeader header;
    std::memcpy(&header, file.data(), sizeof(header));
    const std::size_t data = shard_data_bytes(header.tokens, header.width);
    std::vector<std::uint64_t> offsets(header.documents + 1);
    if (64 + data + offsets.size() * 8 != file.size()) return;
    std::memcpy(offsets.data(), file.data() + 64 + data, offsets.size() * 8);
    header.checksum = shard_checksum(header, offsets);
    std::memcpy(file.data(), &header, sizeof(header));
  }
  template <class T>
  static void put(std::string& file, std::size_t at, T value) {
    std::memcpy(file.data() + at, &value, sizeof(value));
  }
  void refuse(const std::vector<std::string>& pieces, const std::function<void(std::string&)>& change) const {
    std::string file = good_;
    change(file);
    AlignedBuffer buffer(file.size());
    std::memcpy(buffer.data(), file.data(), file.size());
    std::vector<std::string> all = pieces;
    all.emplace_back("label: ");
    expect_error(Status::corrupt, all, [&] { return TokenShard::parse({buffer.data(), buffer.size()}, "label"); });
  }

  const TemporaryFolder folder_;
  std::string good_;
};

TEST_F(Damage, EachFieldIsChecked) {
  refuse({"not a token shard", "QDTOKENS"}, [](std::string& f) { f[0] = 'X'; });
  refuse({"version 0"}, [](std::string& f) { put<std::uint32_t>(f, 8, 0); });
  refuse({"version 3"}, [](std::string& f) { put<std::uint32_t>(f, 8, 3); });
  refuse({"4 bytes a token"}, [](std::string& f) { put<std::uint32_t>(f, 12, 4); });
  refuse({"0 bytes a token"}, [](std::string& f) { put<std::uint32_t>(f, 12, 0); });
  refuse({"13 tokens", "cut short"}, [](std::string& f) { put<std::uint64_t>(f, 16, 13); });
  refuse({"tokens", "cut short"}, [](std::string& f) { put<std::uint64_t>(f, 16, ~std::uint64_t{0}); });
  refuse({"documents", "cut short"}, [](std::string& f) { put<std::uint64_t>(f, 24, ~std::uint64_t{0}); });
  refuse({"documents"}, [](std::string& f) { put<std::uint64_t>(f, 24, 2); });
  refuse({"checksum"}, [](std::string& f) { f[32] ^= 1; });
  refuse({"vocabulary of 0"}, [](std::string& f) { put<std::uint32_t>(f, 40, 0); });
  refuse({"vocabulary of 4294967295"}, [](std::string& f) { put<std::uint32_t>(f, 40, ~0U); });
  refuse({"must be 0"}, [](std::string& f) { put<std::uint32_t>(f, 44, 1); });
  refuse({"checksum"}, [](std::string& f) { f[48] ^= 1; });
}

TEST_F(Damage, OffsetsAreChecked) {
  const std::size_t offsets = 64 + 24;  // nine tokens of two bytes, and six of nothing
  refuse({"checksum"}, [&](std::string& f) { put<std::uint64_t>(f, offsets + 8, 4); });
  refuse({"from token 1 to 9"}, [&](std::string& f) { put<std::uint64_t>(f, offsets, 1), seal(f); });
  refuse({"from token 0 to 8"}, [&](std::string& f) { put<std::uint64_t>(f, offsets + 24, 8), seal(f); });
  refuse({"document 1", "3 to 3"}, [&](std::string& f) { put<std::uint64_t>(f, offsets + 16, 3), seal(f); });
  refuse({"document 1", "99 to 5"}, [&](std::string& f) { put<std::uint64_t>(f, offsets + 8, 99), seal(f); });
}

TEST_F(Damage, EverySizeButTheRightOneIsRefused) {
  for (std::size_t size = 0; size < good_.size(); ++size) {
    refuse({}, [&](std::string& f) { f.resize(size); });
  }
  for (const std::size_t more : {1U, 8U, 100U}) {
    refuse({}, [&](std::string& f) { f.resize(f.size() + more); });
  }
}

TEST_F(Damage, EveryFlippedBitIsSeen) { expect_every_flip_seen(good_); }

// Shards that qdelta 0.1 made of two lines with the tokenizer of bytes.
TEST(ShardsV1, AreReadAndChecked) {
  const std::string folder = fixture("shards_v1");
  const ByteTokenizer tokenizer;
  const TokenDataset dataset = TokenDataset::open(folder);
  EXPECT_EQ(dataset.documents(), 2);
  EXPECT_EQ(starts(dataset, 0, 31), (std::vector<std::int64_t>{0, 16}));
  EXPECT_EQ(tokenizer.decode(all_tokens(dataset)), "The river runs.Past the mill.");
  EXPECT_NO_THROW(dataset.verify());
  EXPECT_EQ(dataset.fingerprint(), tokenizer.fingerprint_v1());
  expect_every_flip_seen(read_file(folder + "/tokens-00000.qdt"));
}

TEST(ShardsV1, GoWithLaterOnesOfTheirTokenizer) {
  const std::string old = fixture("shards_v1");
  const ByteTokenizer tokenizer;
  const TemporaryFolder folder;
  ShardWriter writer({folder.path(), "bytes", tokenizer.vocab_size(), tokenizer.fingerprint(), 1000, false});
  writer.add(Ids{1, 2, 3});
  writer.finish();
  EXPECT_EQ(TokenDataset::open(old, &tokenizer).fingerprint(), tokenizer.fingerprint());
  EXPECT_EQ(TokenDataset::open({old, folder.path()}, &tokenizer).tokens(), 34);
  expect_error(Status::invalid_argument, {"different tokenizers"}, [&] {
    return TokenDataset::open({old, folder.path()});
  });
  const auto other = load_tokenizer(fixture("bpe.model"));
  EXPECT_EQ(TokenDataset::open(old, other.get()).fingerprint(), tokenizer.fingerprint_v1());
}

TEST_F(Damage, AnIdOutsideTheVocabularyIsNotHandedOut) {
  std::string file = good_;
  put<std::uint16_t>(file, 64 + 2 * 4, 1000);
  write_file(folder_.file("tokens-00000.qdt"), file);
  const TokenDataset dataset = TokenDataset::open(folder_.path());
  Ids ids(4);
  EXPECT_NO_THROW(dataset.copy(0, ids));
  expect_error(Status::corrupt, {"tokens-00000.qdt", "id 1000", "vocabulary has 1000"}, [&] {
    dataset.copy(1, ids);
    return 0;
  });
}

TEST_F(Damage, TheIndexIsChecked) {
  const std::string index = read_file(folder_.file("shards.json"));
  const auto refuse_index = [&](const std::string& from, const std::string& to, const std::vector<std::string>& pieces,
                                Status status = Status::corrupt) {
    std::string changed = index;
    const std::size_t at = changed.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    changed.replace(at, from.size(), to);
    write_file(folder_.file("shards.json"), changed);
    expect_error(status, pieces, [&] { return TokenDataset::open(folder_.path()); });
  };
  refuse_index("{", "", {"shards.json", "JSON"});
  refuse_index("qdelta token shards", "something", {"shards.json", "format"});
  refuse_index("\"version\": 2", "\"version\": 9", {"version"}, Status::unsupported);
  refuse_index("\"tokens\": 9", "\"tokens\": 8", {"tokens-00000.qdt", "9 tokens", "lists it with 8"});
  refuse_index("tokens-00000.qdt", "../tokens-00000.qdt", {"same folder"});
  refuse_index("tokens-00000.qdt", "tokens-00001.qdt", {"tokens-00001.qdt", "cannot open"}, Status::io);
}

TEST(TokenDataset, DifferentTokenizersDoNotMix) {
  const TemporaryFolder a;
  const TemporaryFolder b;
  write_counting(a.path(), {5}, 1000, 100);
  ShardWriter writer({b.path(), "other", 1000, 43, 100, false});
  writer.add(Ids{1});
  writer.finish();
  expect_error(Status::invalid_argument, {"different tokenizers", "000000000000002a", "000000000000002b"}, [&] {
    return TokenDataset::open({a.path(), b.path()});
  });
  expect_error(Status::invalid_argument, {"no token shards"},
               [] { return TokenDataset::open(std::vector<std::string>{}); });
  expect_error(Status::io, {"nowhere"}, [&] { return TokenDataset::open(a.file("nowhere")); });
}

}  // namespace
}  // namespace qdelta
