// What reading and writing shards share; the format is described in shards.h.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/fnv1a.h"
#include "core/hash.h"
#include "core/memory.h"

namespace qdelta {

static_assert(std::endian::native == std::endian::little, "shards are mapped as they are, and they are little-endian");

inline constexpr std::array<char, 8> kShardMagic = {'Q', 'D', 'T', 'O', 'K', 'E', 'N', 'S'};
inline constexpr std::uint32_t kShardVersion = 2;  // of what is written; version 1 is read too

struct ShardHeader {
  std::array<char, 8> magic = kShardMagic;
  std::uint32_t version = kShardVersion;
  std::uint32_t width = 2;
  std::uint64_t tokens = 0;
  std::uint64_t documents = 0;
  std::uint64_t fingerprint = 0;
  std::uint32_t vocab_size = 0;
  std::uint32_t reserved = 0;
  std::uint64_t checksum = 0;
  std::uint64_t token_checksum = 0;
};
static_assert(sizeof(ShardHeader) == 64 && offsetof(ShardHeader, checksum) == 48);

[[nodiscard]] constexpr std::uint32_t shard_token_width(std::int32_t vocab_size) { return vocab_size <= 65536 ? 2 : 4; }
[[nodiscard]] constexpr std::uint64_t shard_data_bytes(std::uint64_t tokens, std::uint32_t width) {
  return (tokens * width + 7) / 8 * 8;
}

// Of the tokens, with the zeros after them.
[[nodiscard]] inline std::uint64_t shard_token_checksum(std::uint32_t version, std::span<const std::byte> tokens) {
  return version == 1 ? fnv1a::of_words(tokens) : hash_bytes(tokens);
}
// Of the header up to its checksum and the document offsets.
[[nodiscard]] inline std::uint64_t shard_checksum(const ShardHeader& header, std::span<const std::uint64_t> offsets) {
  const auto fields = std::as_bytes(std::span(&header, 1)).first(offsetof(ShardHeader, checksum));
  const auto ends = std::as_bytes(offsets);
  return header.version == 1 ? fnv1a::of_words(ends, fnv1a::of_words(fields)) : hash_bytes(ends, hash_bytes(fields));
}

// A line of shards.json.
struct ShardEntry {
  std::string name;
  std::int64_t tokens;
  std::int64_t documents;
};
[[nodiscard]] std::vector<ShardEntry> read_shard_index(const std::string& folder);
// The same of a text; `label` stands in messages where the path would.
[[nodiscard]] std::vector<ShardEntry> parse_shard_index(std::string_view text, const std::string& label);

}  // namespace qdelta
