// 64-bit hashes that tell data apart (XXH3; no protection against malice). Files keep them: they must not change.
#pragma once

#include <xxhash.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string_view>

namespace qdelta {

// XXH3_64bits. A hash as the seed of the next one continues it over several pieces of data.
[[nodiscard]] inline std::uint64_t hash_bytes(std::span<const std::byte> bytes, std::uint64_t seed = 0) noexcept {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

// Of some texts, and of where one ends and the next begins.
[[nodiscard]] inline std::uint64_t hash_texts(std::initializer_list<std::string_view> texts) noexcept {
  std::uint64_t hash = 0;
  for (const std::string_view text : texts) hash = hash_bytes(std::as_bytes(std::span(text)), hash);
  return hash;
}

}  // namespace qdelta
