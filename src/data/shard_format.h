// What reading and writing shards share; the format is described in shards.h.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "core/memory.h"

namespace qdelta {

static_assert(std::endian::native == std::endian::little, "shards are mapped as they are, and they are little-endian");

inline constexpr std::array<char, 8> kShardMagic = {'Q', 'D', 'T', 'O', 'K', 'E', 'N', 'S'};
inline constexpr std::uint32_t kShardVersion = 1;

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

// FNV-1a over 64-bit words; the size must be a multiple of 8.
inline constexpr std::uint64_t kChecksumStart = 0xcbf29ce484222325U;
[[nodiscard]] inline std::uint64_t checksum_of(std::span<const std::byte> bytes, std::uint64_t start = kChecksumStart) {
  std::uint64_t hash = start;
  for (std::size_t at = 0; at + 8 <= bytes.size(); at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, 8);
    hash = (hash ^ word) * 0x100000001b3U;
  }
  return hash;
}
[[nodiscard]] inline std::uint64_t shard_checksum(const ShardHeader& header, std::span<const std::uint64_t> offsets) {
  const auto bytes = std::as_bytes(std::span(&header, 1)).first(offsetof(ShardHeader, checksum));
  return checksum_of(std::as_bytes(offsets), checksum_of(bytes));
}

// A line of shards.json.
struct ShardEntry {
  std::string name;
  std::int64_t tokens;
  std::int64_t documents;
};
[[nodiscard]] std::vector<ShardEntry> read_shard_index(const std::string& folder);

}  // namespace qdelta
