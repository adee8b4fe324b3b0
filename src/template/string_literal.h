// A string of a template's source, without the escapes.
#pragma once

#include <string>
#include <string_view>

namespace qdelta::jinja {

// What is between the quotes, as Python's codec unicode-escape reads it: an escape it does not know stays. Throws
// Error(corrupt) with the line for an escape that is cut short, Error(unsupported) for \N{...} and surrogates.
[[nodiscard]] std::string unescaped_literal(std::string_view body, int line);

}  // namespace qdelta::jinja
