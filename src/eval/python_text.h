// Texts as Python's str treats them, so that prompts come out as lm-evaluation-harness makes them. All of them UTF-8.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace qdelta::eval {

// str.isspace of a character, which is also what \s means.
[[nodiscard]] bool is_python_space(char32_t code) noexcept;
// str.strip, str.rstrip without arguments; strip of one ASCII character.
[[nodiscard]] std::string_view stripped(std::string_view text) noexcept;
[[nodiscard]] std::string_view right_stripped(std::string_view text) noexcept;
[[nodiscard]] std::string_view stripped_of(std::string_view text, char character) noexcept;
// str.replace: from the left, never looking at what it has put in.
[[nodiscard]] std::string replaced(std::string_view text, std::string_view from, std::string_view to);
// str.capitalize.
[[nodiscard]] std::string capitalized(std::string_view text);
// text[0].upper() + text[1:]
[[nodiscard]] std::string first_raised(std::string_view text);
// len: in characters.
[[nodiscard]] std::int64_t length_of(std::string_view text) noexcept;
// len(re.split(r"\s+", text)): runs of white space, plus one; white space at an end has an empty word outside.
[[nodiscard]] std::int64_t split_count(std::string_view text) noexcept;
// Where `part` begins in `text`, not regarding case, as re.IGNORECASE does: character by character. npos where it does
// not occur. In bytes.
[[nodiscard]] std::size_t find_any_case(std::string_view text, std::string_view part);

}  // namespace qdelta::eval
