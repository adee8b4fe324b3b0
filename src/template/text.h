// Values as text: Python's str() and repr(), and JSON as json.dumps() writes it.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "template/value.h"

namespace qdelta::jinja {

[[nodiscard]] std::string str(Budget& budget, const Value& value);
[[nodiscard]] std::string repr(Budget& budget, const Value& value);
[[nodiscard]] std::string float_repr(double value);

struct JsonStyle {
  bool ascii = false;
  bool sort_keys = false;
  std::optional<std::string> indent;              // of one level
  std::optional<std::string> between, after_key;  // ", " and ": " unless told; "," where there is an indent
};
[[nodiscard]] std::string to_json(Budget& budget, const Value& value, const JsonStyle& style);

}  // namespace qdelta::jinja
