#include "data/shards.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <filesystem>

#include "core/error.h"
#include "core/hash.h"
#include "data/checked_json.h"
#include "data/shard_format.h"
#include "data/tokenizer.h"

namespace qdelta {
namespace {

namespace fs = std::filesystem;

// Copies and widens; returns the largest id.
template <class Id>
std::uint32_t widen(const std::byte* from, std::span<std::int32_t> out) {
  std::uint32_t largest = 0;
  for (std::size_t i = 0; i < out.size(); ++i) {
    Id id{};
    std::memcpy(&id, from + i * sizeof(Id), sizeof(Id));
    largest = std::max<std::uint32_t>(largest, id);
    out[i] = static_cast<std::int32_t>(id);
  }
  return largest;
}

}  // namespace

TokenShard TokenShard::open(const std::string& path) {
  TokenShard shard;
  shard.path_ = path;
  shard.file_ = MappedFile(path);
  shard.read(shard.file_.bytes());
  return shard;
}

TokenShard TokenShard::parse(std::span<const std::byte> bytes, std::string label) {
  TokenShard shard;
  shard.path_ = std::move(label);
  shard.read(bytes);
  return shard;
}

void TokenShard::read(std::span<const std::byte> bytes) {
  const auto refuse = [&](const std::string& what) { fail(Status::corrupt, "{}: {}", path_, what); };
  ShardHeader header{};
  if (bytes.size() < sizeof(header) + sizeof(std::uint64_t)) {
    refuse(fmt::format("not a token shard: {} bytes are fewer than the smallest has", bytes.size()));
  }
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (header.magic != kShardMagic) refuse("not a token shard: it does not start with \"QDTOKENS\"");
  if (header.version < 1 || header.version > kShardVersion) {
    refuse(fmt::format("version {} of the format; this program reads versions 1 to {}", header.version, kShardVersion));
  }
  if (header.vocab_size == 0 || header.vocab_size > INT32_MAX) {
    refuse(fmt::format("a vocabulary of {} ids is impossible", header.vocab_size));
  }
  if (header.width != shard_token_width(static_cast<std::int32_t>(header.vocab_size))) {
    refuse(fmt::format("{} bytes a token do not go with a vocabulary of {} ids", header.width, header.vocab_size));
  }
  if (header.reserved != 0) refuse("a field that must be 0 is not");

  // Every count is checked against the file's size before it is multiplied.
  const std::uint64_t rest = bytes.size() - sizeof(header);
  const bool possible = header.tokens <= rest / header.width && header.documents < rest / sizeof(std::uint64_t);
  const std::uint64_t data_bytes = possible ? shard_data_bytes(header.tokens, header.width) : 0;
  const std::uint64_t offset_bytes = possible ? (header.documents + 1) * sizeof(std::uint64_t) : 0;
  if (!possible || data_bytes + offset_bytes != rest) {
    refuse(fmt::format("{} bytes do not hold {} tokens of {} bytes and {} documents (is it cut short?)", bytes.size(),
                       header.tokens, header.width, header.documents));
  }
  data_ = bytes.subspan(sizeof(header), data_bytes);
  // Aligned: the mapping, the header and the padded tokens all are.
  offsets_ = {reinterpret_cast<const std::uint64_t*>(bytes.data() + sizeof(header) + data_bytes),
              static_cast<std::size_t>(header.documents) + 1};
  if (header.checksum != shard_checksum(header, offsets_)) {
    refuse("damaged: the checksum of the header and the document offsets does not fit");
  }
  if (offsets_.front() != 0 || offsets_.back() != header.tokens) {
    refuse(fmt::format("the documents reach from token {} to {}, not from 0 to {}", offsets_.front(), offsets_.back(),
                       header.tokens));
  }
  for (std::size_t i = 0; i + 1 < offsets_.size(); ++i) {
    if (offsets_[i] >= offsets_[i + 1]) {
      refuse(fmt::format("document {} goes from token {} to {}", i, offsets_[i], offsets_[i + 1]));
    }
  }
  version_ = header.version;
  tokens_ = static_cast<std::int64_t>(header.tokens);
  vocab_size_ = static_cast<std::int32_t>(header.vocab_size);
  width_ = header.width;
  fingerprint_ = header.fingerprint;
  token_checksum_ = header.token_checksum;
  metadata_checksum_ = header.checksum;
}

void TokenShard::copy(std::int64_t begin, std::span<std::int32_t> out) const {
  const auto count = static_cast<std::int64_t>(out.size());
  require(begin >= 0 && begin <= tokens_ && count <= tokens_ - begin, "{} has tokens [0, {}), not [{}, {})", path_,
          tokens_, begin, begin + count);
  const std::byte* from = data_.data() + static_cast<std::size_t>(begin) * width_;
  const std::uint32_t largest = width_ == 2 ? widen<std::uint16_t>(from, out) : widen<std::uint32_t>(from, out);
  if (!out.empty() && largest >= static_cast<std::uint32_t>(vocab_size_)) {
    fail(Status::corrupt, "{}: damaged: there is an id {} among tokens [{}, {}), but the vocabulary has {}", path_,
         largest, begin, begin + count, vocab_size_);
  }
}

void TokenShard::verify() const {
  if (shard_token_checksum(version_, data_) != token_checksum_) {
    fail(Status::corrupt, "{}: damaged: the checksum of the tokens does not fit; make it again with qdelta tokenize",
         path_);
  }
  std::vector<std::int32_t> ids(std::size_t{1} << 16U);
  for (std::int64_t begin = 0; begin < tokens_;) {
    const std::int64_t count = std::min(tokens_ - begin, static_cast<std::int64_t>(ids.size()));
    copy(begin, std::span(ids).first(static_cast<std::size_t>(count)));
    begin += count;
  }
}

TokenDataset TokenDataset::open(const std::string& path, const Tokenizer* tokenizer) {
  return open(std::vector<std::string>{path}, tokenizer);
}

TokenDataset TokenDataset::open(const std::vector<std::string>& paths, const Tokenizer* tokenizer) {
  require(!paths.empty(), "no token shards were named");
  TokenDataset dataset;
  for (const std::string& path : paths) {
    std::error_code error;
    if (!fs::is_directory(path, error)) {
      dataset.add(TokenShard::open(path), tokenizer);
      continue;
    }
    for (const ShardEntry& entry : read_shard_index(path)) {
      TokenShard shard = TokenShard::open((fs::path(path) / entry.name).string());
      if (shard.tokens() != entry.tokens || shard.documents() != entry.documents) {
        fail(Status::corrupt, "{} has {} tokens in {} documents, but {} lists it with {} in {}", shard.path(),
             shard.tokens(), shard.documents(), kShardIndexName, entry.tokens, entry.documents);
      }
      dataset.add(std::move(shard), tokenizer);
    }
  }
  return dataset;
}

void TokenDataset::add(TokenShard shard, const Tokenizer* tokenizer) {
  const bool own = tokenizer != nullptr && shard.version_ == 1 && shard.fingerprint_ == tokenizer->fingerprint_v1();
  if (own) shard.fingerprint_ = tokenizer->fingerprint();
  if (!shards_.empty() && (shard.fingerprint() != fingerprint() || shard.vocab_size() != vocab_size())) {
    fail(Status::invalid_argument,
         "{} and {} were made with different tokenizers (fingerprints {:016x} and {:016x}, vocabularies of {} and {})",
         shards_.front().path(), shard.path(), fingerprint(), shard.fingerprint(), vocab_size(), shard.vocab_size());
  }
  starts_.push_back(starts_.back() + shard.tokens());
  shards_.push_back(std::move(shard));
}

std::int64_t TokenDataset::documents() const {
  std::int64_t count = 0;
  for (const TokenShard& shard : shards_) count += shard.documents();
  return count;
}

std::size_t TokenDataset::shard_of(std::int64_t token) const {
  // The last shard that starts at or before it: empty ones before it start there too.
  return static_cast<std::size_t>(std::upper_bound(starts_.begin(), starts_.end() - 1, token) - starts_.begin()) - 1;
}

void TokenDataset::copy(std::int64_t begin, std::span<std::int32_t> out) const {
  const auto count = static_cast<std::int64_t>(out.size());
  require(begin >= 0 && begin <= tokens() && count <= tokens() - begin, "the data has tokens [0, {}), not [{}, {})",
          tokens(), begin, begin + count);
  for (std::size_t shard = shard_of(begin); !out.empty(); ++shard) {
    const std::int64_t here = std::min(static_cast<std::int64_t>(out.size()), starts_[shard + 1] - begin);
    shards_[shard].copy(begin - starts_[shard], out.first(static_cast<std::size_t>(here)));
    out = out.subspan(static_cast<std::size_t>(here));
    begin += here;
  }
}

void TokenDataset::for_each_document_start(std::int64_t begin, std::int64_t end,
                                           const std::function<void(std::int64_t)>& start) const {
  for (std::size_t shard = shard_of(begin); shard < shards_.size() && starts_[shard] < end; ++shard) {
    const auto offsets = shards_[shard].offsets();
    const std::int64_t base = starts_[shard];
    const auto first = static_cast<std::uint64_t>(std::max<std::int64_t>(begin - base, 0));
    // The last offset is the end, not a start.
    for (auto at = std::lower_bound(offsets.begin(), offsets.end() - 1, first); at != offsets.end() - 1; ++at) {
      const std::int64_t position = base + static_cast<std::int64_t>(*at);
      if (position >= end) return;
      start(position);
    }
  }
}

std::uint64_t TokenDataset::contents() const {
  std::uint64_t hash = 0;
  for (const TokenShard& shard : shards_) {
    const std::array<std::uint64_t, 2> checksums{shard.metadata_checksum_, shard.token_checksum_};
    hash = hash_bytes(std::as_bytes(std::span(checksums)), hash);
  }
  return hash;
}

void TokenDataset::verify() const {
  for (const TokenShard& shard : shards_) shard.verify();
}

}  // namespace qdelta
