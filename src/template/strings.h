// Python's strings over UTF-8: characters are code points, letters change case as Unicode says.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace qdelta::jinja {

[[nodiscard]] std::int64_t count_characters(std::string_view text);
// Where in the bytes the character of this number starts; the size where there are fewer.
[[nodiscard]] std::size_t byte_of(std::string_view text, std::int64_t character);

// What str.isspace() says.
[[nodiscard]] bool is_python_space(char32_t c);
enum class Side : std::uint8_t { left = 1, right = 2, both = 3 };
[[nodiscard]] std::string_view stripped(std::string_view text, Side side);
// Of these characters, in any order.
[[nodiscard]] std::string_view stripped(std::string_view text, Side side, std::string_view characters);

// At runs of white space; at most so many cuts where that is not negative, from the left or the right.
[[nodiscard]] std::vector<std::string_view> split_at_spaces(std::string_view text, std::int64_t most, bool from_right);
[[nodiscard]] std::vector<std::string_view> split_at(std::string_view text, std::string_view separator,
                                                     std::int64_t most, bool from_right);
[[nodiscard]] std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends);
// At most so many times where that is not negative.
[[nodiscard]] std::string replaced(std::string_view text, std::string_view from, std::string_view to,
                                   std::int64_t most);
[[nodiscard]] std::string escaped(std::string_view text);  // for HTML

[[nodiscard]] std::string upper(std::string_view text);
[[nodiscard]] std::string lower(std::string_view text);
[[nodiscard]] std::string capitalized(std::string_view text);
// Of str.title(): a letter after something that has no case starts a word.
[[nodiscard]] std::string titled(std::string_view text);
// Of the filter: words start after white space, hyphens and opening brackets.
[[nodiscard]] std::string titled_words(std::string_view text);
// Whether there are letters with case, all of them upper or lower.
[[nodiscard]] bool is_all_upper(std::string_view text);
[[nodiscard]] bool is_all_lower(std::string_view text);

}  // namespace qdelta::jinja
