// Unicode, as far as tokenizers need it: classes of characters, normal forms, lower case.
//
// Which characters are letters, digits or marks changes with every version of Unicode, and with it the ids of a text
// that has new ones. So the versions are pinned, each to the one that the Hugging Face tokenizers use at that place
// (0.23): 16.0 for classes in regular expressions, 8.0 for punctuation, 9.0 for normal forms and scripts, 17.0 for
// digits and lower case. Which libraries are installed makes no difference.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/utf8.h"

namespace qdelta::unicode {

using utf8::append;
using utf8::Character;
using utf8::character_at;
using utf8::character_before;
using utf8::kReplacement;
using utf8::step;
using utf8::Step;

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
// Of Unicode 8.0 (the crate unicode_categories): control, format and private-use characters; marks of category Mn.
[[nodiscard]] const CharacterSet& control();
[[nodiscard]] const CharacterSet& nonspacing_marks();
[[nodiscard]] const CharacterSet& combining_marks();  // of Unicode 9.0: all marks

// Scripts as the pre-tokenizer UnicodeScripts tells them apart: Unicode 9.0's, Hiragana and Katakana counted as Han;
// none for the space and for what 9.0 did not have.
inline constexpr int kNoScript = -1;
[[nodiscard]] int script_of(char32_t code);

// Calls cluster(begin, end) for each extended grapheme cluster, what readers take for one character, in order: of the
// installed version of Unicode.
void for_each_cluster(std::string_view text, const std::function<void(std::size_t begin, std::size_t end)>& cluster);

enum class Form { nfc, nfd, nfkc, nfkd };
// Of valid UTF-8.
[[nodiscard]] std::string normalized(std::string_view text, Form form);
// Character by character, whatever stands around it.
[[nodiscard]] std::string lower_case(std::string_view text);

}  // namespace qdelta::unicode
