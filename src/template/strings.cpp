#include "template/strings.h"

#include <algorithm>

#include "data/unicode.h"

namespace qdelta::jinja {
namespace {

bool is_line_end(char32_t c) {
  return (c >= 0x0a && c <= 0x0d) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

template <class Predicate>
std::string_view strip_where(std::string_view text, Side side, const Predicate& strip) {
  const auto has = [side](Side one) { return (static_cast<unsigned>(side) & static_cast<unsigned>(one)) != 0; };
  while (has(Side::left) && !text.empty()) {
    const unicode::Character next = unicode::character_at(text.data());
    if (!strip(next.code)) break;
    text.remove_prefix(next.length);
  }
  while (has(Side::right) && !text.empty()) {
    const std::size_t at = unicode::character_before(text, text.size());
    if (!strip(unicode::character_at(text.data() + at).code)) break;
    text = text.substr(0, at);
  }
  return text;
}

}  // namespace

std::int64_t count_characters(std::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xc0U) != 0x80U; });
}

std::size_t byte_of(std::string_view text, std::int64_t character) {
  std::size_t at = 0;
  for (; character > 0 && at < text.size(); --character) at += unicode::character_at(text.data() + at).length;
  return at;
}

bool is_python_space(char32_t c) { return unicode::is_space(c) || (c >= 0x1c && c <= 0x1f); }

std::string_view stripped(std::string_view text, Side side) { return strip_where(text, side, is_python_space); }

std::string_view stripped(std::string_view text, Side side, std::string_view characters) {
  std::u32string set;
  for (std::size_t at = 0; at < characters.size();) {
    const unicode::Character next = unicode::character_at(characters.data() + at);
    set += next.code;
    at += next.length;
  }
  std::sort(set.begin(), set.end());
  return strip_where(text, side, [&set](char32_t c) { return std::binary_search(set.begin(), set.end(), c); });
}

std::vector<std::string_view> split_at_spaces(std::string_view text, std::int64_t most, bool from_right) {
  std::vector<std::string_view> words;
  const Side near = from_right ? Side::right : Side::left;
  for (text = stripped(text, near); !text.empty(); text = stripped(text, near)) {
    if (most >= 0 && static_cast<std::int64_t>(words.size()) == most) {
      words.push_back(text);  // with the white space at its other end
      break;
    }
    // What is left when everything up to the next white space is taken away.
    const std::string_view rest = strip_where(text, near, [](char32_t c) { return !is_python_space(c); });
    const std::size_t length = text.size() - rest.size();
    words.push_back(from_right ? text.substr(rest.size()) : text.substr(0, length));
    text = rest;
  }
  if (from_right) std::reverse(words.begin(), words.end());
  return words;
}

std::vector<std::string_view> split_at(std::string_view text, std::string_view separator, std::int64_t most,
                                       bool from_right) {
  std::vector<std::string_view> parts;
  while (most < 0 || static_cast<std::int64_t>(parts.size()) < most) {
    const std::size_t at = from_right ? text.rfind(separator) : text.find(separator);
    if (at == std::string_view::npos) break;
    parts.push_back(from_right ? text.substr(at + separator.size()) : text.substr(0, at));
    text = from_right ? text.substr(0, at) : text.substr(at + separator.size());
  }
  parts.push_back(text);
  if (from_right) std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends) {
  std::vector<std::string_view> lines;
  std::size_t start = 0;
  for (std::size_t at = 0; at < text.size();) {
    const unicode::Character next = unicode::character_at(text.data() + at);
    std::size_t end = at + next.length;
    if (is_line_end(next.code)) {
      if (next.code == '\r' && end < text.size() && text[end] == '\n') ++end;
      lines.push_back(text.substr(start, (keep_ends ? end : at) - start));
      start = end;
    }
    at = end;
  }
  if (start < text.size()) lines.push_back(text.substr(start));
  return lines;
}

std::string replaced(std::string_view text, std::string_view from, std::string_view to, std::int64_t most) {
  std::string result;
  if (from.empty()) {  // before every character and at the end
    for (std::size_t at = 0; at <= text.size(); --most) {
      if (most != 0) result += to;
      if (at == text.size()) break;
      const std::size_t length = unicode::character_at(text.data() + at).length;
      result += text.substr(at, length);
      at += length;
      if (most == 0) ++most;
    }
    return result;
  }
  while (most != 0) {
    const std::size_t at = text.find(from);
    if (at == std::string_view::npos) break;
    result += text.substr(0, at);
    result += to;
    text.remove_prefix(at + from.size());
    --most;
  }
  result += text;
  return result;
}

std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '\'':
        result += "&#39;";
        break;
      case '"':
        result += "&#34;";
        break;
      default:
        result += c;
    }
  }
  return result;
}

}  // namespace qdelta::jinja
