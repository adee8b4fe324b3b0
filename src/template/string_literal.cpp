#include "template/string_literal.h"

#include <fmt/format.h>

#include <charconv>

#include "data/unicode.h"
#include "template/budget.h"
#include "template/lexer.h"

namespace qdelta::jinja {
namespace {

// Jinja turns what is not ASCII into escapes first. It shows where a backslash stands before such a character.
std::string as_ascii(std::string_view body) {
  std::string result;
  for (std::size_t at = 0; at < body.size();) {
    const unicode::Character next = unicode::character_at(body.data() + at);
    const auto code = static_cast<std::uint32_t>(next.code);
    if (code < 0x80) {
      result += body[at];
    } else {
      result += code < 0x100     ? fmt::format("\\x{:02x}", code)
                : code < 0x10000 ? fmt::format("\\u{:04x}", code)
                                 : fmt::format("\\U{:08x}", code);
    }
    at += next.length;
  }
  return result;
}

// The characters of an escape that stand for themselves or for one other.
char simple_escape(char c) {
  static constexpr std::string_view kFrom = "\\'\"abfnrtv";
  static constexpr std::string_view kTo = "\\'\"\a\b\f\n\r\t\v";
  const std::size_t at = kFrom.find(c);
  return at == std::string_view::npos ? '\0' : kTo[at];
}

char32_t hexadecimal(std::string_view digits, std::size_t count, int line) {
  std::uint32_t code = 0;
  const std::string_view taken = digits.substr(0, count);
  const auto result = std::from_chars(taken.data(), taken.data() + taken.size(), code, 16);
  if (taken.size() < count || result.ec != std::errc() || result.ptr != taken.data() + count) {
    throw syntax_error(line, "an escape in a string is cut short");
  }
  if (code > 0x10ffff) throw syntax_error(line, "an escape in a string is beyond Unicode");
  if (code >= 0xd800 && code < 0xe000) throw not_supported("a surrogate in a string", line);
  return code;
}

std::size_t octal_length(std::string_view text) {
  std::size_t length = 0;
  while (length < 3 && length < text.size() && text[length] >= '0' && text[length] <= '7') ++length;
  return length;
}

}  // namespace

std::string unescaped_literal(std::string_view body, int line) {
  if (body.find('\\') == std::string_view::npos) return std::string(body);
  const std::string ascii = as_ascii(body);
  std::string_view text = ascii;
  std::string result;
  while (!text.empty()) {
    if (text[0] != '\\' || text.size() == 1) {
      result += text[0];
      text.remove_prefix(1);
      continue;
    }
    const char c = text[1];
    text.remove_prefix(2);
    if (c == '\n') continue;
    if (const char simple = simple_escape(c); simple != '\0') {
      result += simple;
    } else if (c == 'x' || c == 'u' || c == 'U') {
      const std::size_t count = c == 'x' ? 2 : c == 'u' ? 4 : 8;
      unicode::append(result, hexadecimal(text, count, line));
      text.remove_prefix(count);
    } else if (c == 'N') {
      throw not_supported("a character by its name in a string", line);
    } else if (c >= '0' && c <= '7') {
      const std::size_t more =
          octal_length(std::string_view(text.data() - 1, std::min<std::size_t>(3, text.size() + 1)));
      std::uint32_t code = 0;
      std::from_chars(text.data() - 1, text.data() - 1 + more, code, 8);
      unicode::append(result, code);
      text.remove_prefix(more - 1);
    } else {
      result += '\\';
      result += c;
    }
  }
  return result;
}

}  // namespace qdelta::jinja
