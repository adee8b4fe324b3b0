// Text that comes out of files and requests: is it UTF-8, and how to show it in a message.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace qdelta {

// Position of the first byte that is not well-formed UTF-8 (RFC 3629: no overlong forms, no surrogates, nothing above
// U+10FFFF); nullopt when all of it is.
[[nodiscard]] std::optional<std::size_t> first_invalid_utf8(std::string_view text) noexcept;

// The text in double quotes, fit for one line: control characters, quotes and backslashes escaped, a long text cut.
[[nodiscard]] std::string shown(std::string_view text);

}  // namespace qdelta
