#include "eval/python_text.h"

#include <unicode/stringoptions.h>
#include <unicode/ucasemap.h>
#include <unicode/uchar.h>

#include <memory>
#include <vector>

#include "core/error.h"
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

// A text in another case, by one of ICU's functions. A character may become up to three, and what Greek's sigma becomes
// depends on its neighbours.
template <class Map>
std::string case_mapped(std::string_view text, const Map& map) {
  UErrorCode status = U_ZERO_ERROR;
  const std::unique_ptr<UCaseMap, decltype(&ucasemap_close)> cases(
      ucasemap_open("", U_TITLECASE_WHOLE_STRING | U_TITLECASE_NO_BREAK_ADJUSTMENT, &status), ucasemap_close);
  std::string out(3 * text.size(), '\0');
  const std::int32_t length = map(cases.get(), out.data(), static_cast<std::int32_t>(out.size()), text.data(),
                                  static_cast<std::int32_t>(text.size()), &status);
  if (U_FAILURE(status) != 0) fail(Status::internal, "ICU cannot map the case of a text: {}", u_errorName(status));
  out.resize(static_cast<std::size_t>(length));
  return out;
}
std::string in_lower_case(std::string_view text) { return case_mapped(text, ucasemap_utf8ToLower); }
std::string in_upper_case(std::string_view text) { return case_mapped(text, ucasemap_utf8ToUpper); }
std::string in_title_case(std::string_view character) { return case_mapped(character, ucasemap_utf8ToTitle); }

std::string_view first_character(std::string_view text) {
  return text.substr(0, text.empty() ? 0 : unicode::character_at(text.data()).length);
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
  const std::string_view first = first_character(text);
  return in_title_case(first) + in_lower_case(text).substr(in_lower_case(first).size());
}

std::string first_raised(std::string_view text) {
  const std::string_view first = first_character(text);
  return in_upper_case(first) + std::string(text.substr(first.size()));
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
  // By way of upper case, so that all forms of a letter become one.
  const auto one_case = [](std::string& out, char32_t code) {
    unicode::append(out, static_cast<char32_t>(u_tolower(u_toupper(static_cast<UChar32>(code)))));
  };
  std::string wanted, all;
  // Another case may be longer or shorter, so the places are kept beside it.
  std::vector<std::size_t> places;
  for_each_character(part, [&](char32_t code, std::size_t, std::size_t) { one_case(wanted, code); });
  for_each_character(text, [&](char32_t code, std::size_t begin, std::size_t) {
    one_case(all, code);
    places.resize(all.size(), begin);
  });
  const std::size_t at = all.find(wanted);
  if (at == std::string::npos) return at;
  return at < places.size() ? places[at] : text.size();
}

}  // namespace qdelta::eval
