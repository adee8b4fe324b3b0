// Token shards: the ids of documents, ready to be mapped into memory.
//
// One shard, all numbers little-endian:
//
//   byte  0  8 bytes   "QDTOKENS"
//         8  u32       version, 2
//        12  u32       bytes of a token: 2 if the vocabulary has at most 65536 ids, else 4
//        16  u64       tokens
//        24  u64       documents
//        32  u64       fingerprint of the tokenizer (Tokenizer::fingerprint)
//        40  u32       size of the vocabulary: every id is below it
//        44  u32       0
//        48  u64       checksum of bytes 0 to 47 and the document offsets
//        56  u64       checksum of the tokens
//        64            the tokens, with zeros up to a multiple of 8
//                      u64[documents + 1]: where each document starts, in tokens, and the end of the last. No document
//                      is empty, so they only grow.
//
// Checksums and the fingerprint are XXH3 with 64 bits; the offsets are hashed with the hash of the bytes before them as
// the seed. In version 1 they are FNV-1a instead (the checksums over 64-bit words), and nothing else differs.
//
// A folder of shards has a shards.json, written last, that lists them in order: a folder without one is not finished.
// Documents do not cross from one shard into another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "io/mapped_file.h"

namespace qdelta {

inline constexpr const char* kShardIndexName = "shards.json";

class Tokenizer;

class TokenShard {
 public:
  // Everything but the tokens is checked. Throws Error(io), or Error(corrupt) with what is wrong.
  [[nodiscard]] static TokenShard open(const std::string& path);
  // The same on a file's bytes in memory, which stay the caller's and must start at a multiple of 8.
  [[nodiscard]] static TokenShard parse(std::span<const std::byte> bytes, std::string label);

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::int64_t tokens() const { return tokens_; }
  [[nodiscard]] std::int64_t documents() const { return static_cast<std::int64_t>(offsets_.size()) - 1; }
  [[nodiscard]] std::int32_t vocab_size() const { return vocab_size_; }
  [[nodiscard]] std::uint64_t fingerprint() const { return fingerprint_; }
  // documents() + 1 of them.
  [[nodiscard]] std::span<const std::uint64_t> offsets() const { return offsets_; }

  // Tokens [begin, begin + out.size()). Throws Error(corrupt) for an id that is not in the vocabulary.
  void copy(std::int64_t begin, std::span<std::int32_t> out) const;
  // Reads all of it: the checksum of the tokens, and that every id is in the vocabulary. Throws Error(corrupt).
  void verify() const;

 private:
  friend class TokenDataset;
  TokenShard() = default;
  void read(std::span<const std::byte> bytes);

  std::string path_;
  MappedFile file_;  // empty after parse()
  std::uint32_t version_ = 0;
  std::int64_t tokens_ = 0;
  std::int32_t vocab_size_ = 0;
  std::uint32_t width_ = 2;
  std::uint64_t fingerprint_ = 0;
  std::uint64_t token_checksum_ = 0;
  std::uint64_t metadata_checksum_ = 0;
  std::span<const std::byte> data_;  // of the tokens, with the zeros after them
  std::span<const std::uint64_t> offsets_;
};

// Several shards as one sequence of documents.
class TokenDataset {
 public:
  // A shard, or a folder with a shards.json.
  [[nodiscard]] static TokenDataset open(const std::string& path, const Tokenizer* tokenizer = nullptr);
  // Several of either, one after the other; all must come from the same tokenizer. Shards of version 1 have another
  // fingerprint than later ones: `tokenizer`, where it is known, finds its own among them and gives them its present
  // one.
  [[nodiscard]] static TokenDataset open(const std::vector<std::string>& paths, const Tokenizer* tokenizer = nullptr);

  [[nodiscard]] std::int64_t tokens() const { return starts_.back(); }
  [[nodiscard]] std::int64_t documents() const;
  [[nodiscard]] std::int32_t vocab_size() const { return shards_.front().vocab_size(); }
  [[nodiscard]] std::uint64_t fingerprint() const { return shards_.front().fingerprint(); }
  [[nodiscard]] const std::vector<TokenShard>& shards() const { return shards_; }

  // Tokens [begin, begin + out.size()) of all of them, wherever they lie.
  void copy(std::int64_t begin, std::span<std::int32_t> out) const;
  // Calls start(position) for every document that starts in [begin, end), in order.
  void for_each_document_start(std::int64_t begin, std::int64_t end,
                               const std::function<void(std::int64_t)>& start) const;
  void verify() const;
  // Tells sets of shards apart by what is in them: tokens and documents, by their checksums.
  [[nodiscard]] std::uint64_t contents() const;

 private:
  TokenDataset() = default;
  void add(TokenShard shard, const Tokenizer* tokenizer);
  // The shard that holds this token.
  [[nodiscard]] std::size_t shard_of(std::int64_t token) const;

  std::vector<TokenShard> shards_;
  std::vector<std::int64_t> starts_{0};  // of each shard, and the end of the last
};

// Writes a folder of shards. A shard is kept in memory until it is full, then appears whole.
class ShardWriter {
 public:
  struct Options {
    std::string folder;  // made if it is not there
    std::string tokenizer_name;
    std::int32_t vocab_size = 0;
    std::uint64_t fingerprint = 0;
    std::int64_t shard_tokens = std::int64_t{1} << 26U;  // a shard is full when it has as many
    bool replace = false;                                // a finished set of shards in the same folder
  };
  struct Totals {
    std::int64_t tokens = 0;
    std::int64_t documents = 0;
    std::int64_t shards = 0;
  };

  // Throws Error(invalid_argument) if there are shards already that are not to be replaced.
  explicit ShardWriter(Options options);

  // A document that is not empty; every id must be in the vocabulary.
  void add(std::span<const std::int32_t> document);
  // Writes what is left and then shards.json; nothing may be added afterwards. There must have been a document.
  Totals finish();

 private:
  struct Written {
    std::string name;
    std::int64_t tokens;
    std::int64_t documents;
  };
  void write_shard();
  void write_index() const;

  Options options_;
  std::size_t width_;
  std::vector<std::byte> tokens_;
  std::vector<std::uint64_t> offsets_{0};
  std::vector<Written> written_;
};

}  // namespace qdelta
