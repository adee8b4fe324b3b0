// UTF-8, decoded and encoded by ICU's macros, which need no library to be linked.
#pragma once

#include <unicode/utf8.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace qdelta::utf8 {

inline constexpr std::string_view kReplacement = "\xef\xbf\xbd";  // U+FFFD

// What stands at the start of a text that is not empty: a character; bytes that can be none (the longest run that one
// replacement character stands for, as in the Unicode standard, Rust and Python); or the start of a character that the
// end of the text cuts off.
struct Step {
  enum class Kind : std::uint8_t { character, invalid, incomplete };
  Kind kind = Kind::invalid;
  std::uint8_t length = 0;  // in bytes
  char32_t code = 0;        // of a character
};
[[nodiscard]] inline Step step(std::string_view text) noexcept {
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(text.data());
  const std::uint8_t lead = bytes[0];
  if (lead < 0x80) return {Step::Kind::character, 1, lead};
  const int size = static_cast<int>(text.size() < U8_MAX_LENGTH ? text.size() : U8_MAX_LENGTH);
  int length = 0;
  UChar32 code = 0;
  U8_NEXT(bytes, length, size, code);
  const auto read = static_cast<std::uint8_t>(length);
  if (code >= 0) return {Step::Kind::character, read, static_cast<char32_t>(code)};
  const bool cut_off = length == size && U8_COUNT_TRAIL_BYTES(lead) >= length;
  return {cut_off ? Step::Kind::incomplete : Step::Kind::invalid, read};
}

// The character at `text`, which must be the start of one.
struct Character {
  char32_t code;
  std::uint8_t length;
};
[[nodiscard]] inline Character character_at(const char* text) noexcept {
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(text);
  int length = 0;
  UChar32 code = 0;
  U8_NEXT_UNSAFE(bytes, length, code);
  return {static_cast<char32_t>(code), static_cast<std::uint8_t>(length)};
}

// The start of the character that ends before `end`, in valid UTF-8; end > 0.
[[nodiscard]] inline std::size_t character_before(std::string_view text, std::size_t end) noexcept {
  do --end;
  while (end > 0 && U8_IS_TRAIL(text[end]));
  return end;
}

// `code` must be that of a character.
inline void append(std::string& text, char32_t code) {
  char bytes[U8_MAX_LENGTH];
  std::size_t length = 0;
  U8_APPEND_UNSAFE(bytes, length, code);
  text.append(bytes, length);
}

}  // namespace qdelta::utf8
