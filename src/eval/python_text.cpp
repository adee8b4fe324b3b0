#include "eval/python_text.h"

#include <unicode/uchar.h>

#include <vector>

#include "data/unicode.h"

namespace qdelta::eval {
namespace {

// Calls body(code, begin, end) for every character.
template <class Body>
void for_each_character(std::string_view text, const Body& body) {
  for (std::size_t at = 0; at < text.size();) {
    const unicode::Character character = unicode::character_at(text.data() + at);
    body(character.code, at, at + character.length);
    at += character.length;
  }
}

std::string with_first(std::string_view text, std::string_view rest) {
  std::string out;
  unicode::append(out, static_cast<char32_t>(u_totitle(static_cast<UChar32>(unicode::character_at(text.data()).code))));
  out += rest;
  return out;
}

}  // namespace

bool is_python_space(char32_t code) noexcept { return unicode::is_space(code) || (code >= 0x1c && code <= 0x1f); }

std::string_view right_stripped(std::string_view text) noexcept {
  while (!text.empty()) {
    const std::size_t last = unicode::character_before(text, text.size());
    if (!is_python_space(unicode::character_at(text.data() + last).code)) break;
    text = text.substr(0, last);
  }
  return text;
}

std::string_view stripped(std::string_view text) noexcept {
  while (!text.empty()) {
    const unicode::Character first = unicode::character_at(text.data());
    if (!is_python_space(first.code)) break;
    text.remove_prefix(first.length);
  }
  return right_stripped(text);
}

std::string_view stripped_of(std::string_view text, char character) noexcept {
  while (!text.empty() && text.front() == character) text.remove_prefix(1);
  while (!text.empty() && text.back() == character) text.remove_suffix(1);
  return text;
}

std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  std::size_t done = 0;
  for (std::size_t at = text.find(from); at != std::string_view::npos; at = text.find(from, done)) {
    out += text.substr(done, at - done);
    out += to;
    done = at + from.size();
  }
  out += text.substr(done);
  return out;
}

std::string capitalized(std::string_view text) {
  if (text.empty()) return {};
  return with_first(text, unicode::lower_case(text.substr(unicode::character_at(text.data()).length)));
}

std::string first_raised(std::string_view text) {
  if (text.empty()) return {};
  return with_first(text, text.substr(unicode::character_at(text.data()).length));
}

std::int64_t length_of(std::string_view text) noexcept {
  std::int64_t count = 0;
  for_each_character(text, [&](char32_t, std::size_t, std::size_t) { ++count; });
  return count;
}

std::int64_t split_count(std::string_view text) noexcept {
  std::int64_t count = 1;
  bool inside = false;
  for_each_character(text, [&](char32_t code, std::size_t, std::size_t) {
    const bool space = is_python_space(code);
    if (space && !inside) ++count;
    inside = space;
  });
  return count;
}

std::size_t find_any_case(std::string_view text, std::string_view part) {
  // Lower case may be longer or shorter than what it comes from, so the places are kept beside it.
  std::string lower;
  std::vector<std::size_t> places;
  for_each_character(text, [&](char32_t, std::size_t begin, std::size_t end) {
    lower += unicode::lower_case(text.substr(begin, end - begin));
    places.resize(lower.size(), begin);
  });
  const std::size_t at = lower.find(unicode::lower_case(part));
  if (at == std::string::npos) return at;
  return at < places.size() ? places[at] : text.size();
}

}  // namespace qdelta::eval
