#include "io/untrusted_text.h"

#include <fmt/format.h>

#include "core/utf8.h"

namespace qdelta {
namespace {

constexpr std::size_t kLongestShown = 200;  // bytes; a damaged file may hold a "name" of megabytes

// Length of the well-formed sequence at the start of a text that is not empty; 0 when there is none.
std::size_t sequence_length(std::string_view text) noexcept {
  const utf8::Step next = utf8::step(text);
  return next.kind == utf8::Step::Kind::character ? next.length : 0;
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
    while (end > 0 && U8_IS_TRAIL(text[end])) --end;  // do not cut a character in two
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
