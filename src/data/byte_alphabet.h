// GPT-2's alphabet: each byte as a printable character, so that a vocabulary of byte strings can be written as text.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace qdelta {

class ByteAlphabet {
 public:
  static const ByteAlphabet& get();

  [[nodiscard]] char32_t code(unsigned char byte) const noexcept { return codes_[byte]; }
  // The bytes as characters.
  [[nodiscard]] std::string encode(std::string_view bytes) const;
  // The bytes that these characters stand for; nullopt if one of them stands for none.
  [[nodiscard]] std::optional<std::string> decode(std::string_view characters) const;

 private:
  ByteAlphabet();

  static constexpr char32_t kCodes = 0x144;  // 256 + the 68 bytes that are not printable
  std::array<char32_t, 256> codes_{};
  std::array<std::int16_t, kCodes> bytes_{};  // -1: none
};

}  // namespace qdelta
