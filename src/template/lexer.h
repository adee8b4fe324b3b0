// A template cut into tokens.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "template/value.h"

namespace qdelta::jinja {

enum class TokenKind : std::uint8_t {
  data,          // text outside of tags
  block_begin,   // {%
  block_end,     // %}
  output_begin,  // {{
  output_end,    // }}
  name,
  string,
  integer,
  real,
  op,
  end
};

struct Token {
  TokenKind kind = TokenKind::end;
  int line = 0;
  std::string text;  // the data, name, operator, or string without its escapes
  std::int64_t integer = 0;
  double real = 0;
};

// White space around tags is gone from the data, as their signs, trim_blocks and lstrip_blocks ask. The last token is
// `end`. Throws Error(corrupt).
[[nodiscard]] std::vector<Token> tokenize(std::string_view source);

[[nodiscard]] Error syntax_error(int line, std::string_view what);

}  // namespace qdelta::jinja
