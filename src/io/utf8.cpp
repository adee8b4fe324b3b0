#include "io/utf8.h"

#include <fmt/format.h>

namespace qdelta {
namespace {

constexpr std::size_t kLongestShown = 200;  // bytes; a damaged file may hold a "name" of megabytes

constexpr bool is_continuation(char c) noexcept { return (static_cast<unsigned char>(c) & 0xc0u) == 0x80u; }

// Length of the well-formed sequence at the start of a text that is not empty; 0 when there is none.
std::size_t sequence_length(std::string_view text) noexcept {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned lead = byte(0);
  if (lead < 0x80u) return 1;
  std::size_t length = 0;
  if (lead >= 0xc2u && lead <= 0xdfu) length = 2;  // 0xc0 and 0xc1 could only start overlong forms
  if (lead >= 0xe0u && lead <= 0xefu) length = 3;
  if (lead >= 0xf0u && lead <= 0xf4u) length = 4;
  if (length == 0 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if (!is_continuation(text[i])) return 0;
  }
  const unsigned second = byte(1);
  if (lead == 0xe0u && second < 0xa0u) return 0;  // overlong
  if (lead == 0xedu && second > 0x9fu) return 0;  // surrogate
  if (lead == 0xf0u && second < 0x90u) return 0;  // overlong
  if (lead == 0xf4u && second > 0x8fu) return 0;  // above U+10FFFF
  return length;
}

}  // namespace

std::optional<std::size_t> first_invalid_utf8(std::string_view text) noexcept {
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t length = sequence_length(text.substr(at));
    if (length == 0) return at;
    at += length;
  }
  return std::nullopt;
}

std::string shown(std::string_view text) {
  std::size_t end = text.size();
  if (end > kLongestShown) {
    end = kLongestShown;
    while (end > 0 && is_continuation(text[end])) --end;  // do not cut a character in two
  }
  std::string result = "\"";
  for (std::size_t at = 0; at < end;) {
    const std::size_t length = sequence_length(text.substr(at));
    const char c = text[at];
    if (length == 0 || static_cast<unsigned char>(c) < 0x20u || c == '\x7f') {
      result += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
      ++at;
      continue;
    }
    if (c == '"' || c == '\\') result += '\\';
    result += text.substr(at, length);
    at += length;
  }
  result += '"';
  if (end < text.size()) result += fmt::format("... ({} bytes)", text.size());
  return result;
}

}  // namespace qdelta
