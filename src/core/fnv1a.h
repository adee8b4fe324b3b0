// FNV-1a, for two things that must keep their bits: the seeds of parameters' initial values, and files that carry it
// (token shards of version 1, saved states of version 1, and the fingerprints in them). All else uses core/hash.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <span>
#include <string_view>

namespace qdelta::fnv1a {

inline constexpr std::uint64_t kStart = 0xcbf29ce484222325U;

[[nodiscard]] constexpr std::uint64_t step(std::uint64_t hash, std::uint64_t word) noexcept {
  return (hash ^ word) * 0x100000001b3U;
}

// Over the bytes of some texts, each followed by its length, so that what ends one cannot start the next.
[[nodiscard]] constexpr std::uint64_t of_texts(std::initializer_list<std::string_view> texts) noexcept {
  std::uint64_t hash = kStart;
  for (const std::string_view text : texts) {
    for (const char c : text) hash = step(hash, static_cast<unsigned char>(c));
    for (std::uint64_t length = text.size(), i = 0; i < 8; ++i, length >>= 8U) hash = step(hash, length & 0xffU);
  }
  return hash;
}

// Over 64-bit words; the size must be a multiple of 8.
[[nodiscard]] inline std::uint64_t of_words(std::span<const std::byte> bytes, std::uint64_t start = kStart) noexcept {
  std::uint64_t hash = start;
  for (std::size_t at = 0; at + 8 <= bytes.size(); at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, 8);
    hash = step(hash, word);
  }
  return hash;
}

}  // namespace qdelta::fnv1a
