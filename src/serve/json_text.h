// JSON as text, for answers that are written out as they come and never exist as a whole.
#pragma once

#include <nlohmann/json.hpp>

#include <string>
#include <string_view>

namespace qdelta::serve {

// Every text here is UTF-8; should one not be, an answer with U+FFFD is better than none.
[[nodiscard]] inline std::string json_text(const nlohmann::json& value) {
  return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}
// A text with its quotes.
[[nodiscard]] inline std::string json_string(std::string_view text) { return json_text(nlohmann::json(text)); }

}  // namespace qdelta::serve
