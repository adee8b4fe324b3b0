// A 64-bit hash of some texts, to tell one from another (FNV-1a; no protection against malice).
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string_view>

namespace qdelta {

[[nodiscard]] inline std::uint64_t fingerprint_of(std::initializer_list<std::string_view> parts) noexcept {
  std::uint64_t hash = 0xcbf29ce484222325U;
  const auto add = [&hash](unsigned char byte) { hash = (hash ^ byte) * 0x100000001b3U; };
  for (const std::string_view part : parts) {
    for (const char c : part) add(static_cast<unsigned char>(c));
    // The lengths, so that what ends one part cannot start the next.
    for (std::uint64_t length = part.size(), i = 0; i < 8; ++i, length >>= 8U) add(static_cast<unsigned char>(length));
  }
  return hash;
}

}  // namespace qdelta
