// Unicode, as far as tokenizers need it: UTF-8 step by step, classes of characters, normal forms, lower case.
//
// Which characters are letters, digits or marks changes with every version of Unicode, and with it the ids of a text
// that has new ones. So the versions are pinned, each to the one that the Hugging Face tokenizers use at that place
// (0.23): 16.0 for classes in regular expressions, 8.0 for punctuation, 9.0 for normal forms, 17.0 for digits and lower
// case. Which libraries are installed makes no difference.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace qdelta::unicode {

inline constexpr std::string_view kReplacement = "\xef\xbf\xbd";  // U+FFFD

// What stands at the start of a text that is not empty: a character; bytes that can be none (the longest run that one
// replacement character stands for, as in the Unicode standard, Rust and Python); or the start of a character that the
// end of the text cuts off.
struct Step {
  enum class Kind : std::uint8_t { character, invalid, incomplete };
  Kind kind;
  std::uint8_t length;  // in bytes
};
[[nodiscard]] Step step(std::string_view text) noexcept;

// The character at `text`, which must be the start of one.
struct Character {
  char32_t code;
  std::uint8_t length;
};
[[nodiscard]] inline Character character_at(const char* text) noexcept {
  const auto byte = [text](int i) { return static_cast<char32_t>(static_cast<unsigned char>(text[i])); };
  const char32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  if (lead < 0xe0) return {((lead & 0x1f) << 6) | (byte(1) & 0x3f), 2};
  if (lead < 0xf0) return {((lead & 0x0f) << 12) | ((byte(1) & 0x3f) << 6) | (byte(2) & 0x3f), 3};
  return {((lead & 0x07) << 18) | ((byte(1) & 0x3f) << 12) | ((byte(2) & 0x3f) << 6) | (byte(3) & 0x3f), 4};
}
// The start of the character that ends before `end`, in valid UTF-8; end > 0.
[[nodiscard]] inline std::size_t character_before(std::string_view text, std::size_t end) noexcept {
  do --end;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0U) == 0x80U);
  return end;
}
void append(std::string& text, char32_t code);

[[nodiscard]] bool is_ascii(std::string_view text) noexcept;
// The text with U+FFFD in the place of what is not UTF-8.
[[nodiscard]] std::string with_replacements(std::string_view text);

// A set of code points: one bit each.
class CharacterSet {
 public:
  template <class Predicate>
  explicit CharacterSet(const Predicate& contains) : bits_(kCodes / 64) {
    for (char32_t code = 0; code < kCodes; ++code) {
      if (contains(code)) bits_[code / 64] |= std::uint64_t{1} << (code % 64);
    }
  }
  [[nodiscard]] bool contains(char32_t code) const noexcept {
    return code < kCodes && ((bits_[code / 64] >> (code % 64)) & 1U) != 0;
  }

 private:
  static constexpr char32_t kCodes = 0x110000;
  std::vector<std::uint64_t> bits_;
};

// White_Space; the same in every version that matters.
[[nodiscard]] constexpr bool is_space(char32_t c) noexcept {
  return (c >= 0x09 && c <= 0x0d) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}
// Built when first asked for, then kept.
[[nodiscard]] const CharacterSet& numbers();      // Rust's char::is_numeric
[[nodiscard]] const CharacterSet& punctuation();  // of the crate unicode_categories, and what ASCII calls so
[[nodiscard]] const CharacterSet& word();         // \w of Rust's crate regex

enum class Form { nfc, nfd, nfkc, nfkd };
// Of valid UTF-8.
[[nodiscard]] std::string normalized(std::string_view text, Form form);
// Character by character, whatever stands around it.
[[nodiscard]] std::string lower_case(std::string_view text);

}  // namespace qdelta::unicode
