// What a state may be called: a name is also that of a file, and cannot lead out of its folder.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "serve/api_error.h"

namespace qdelta::serve {

inline constexpr std::size_t kLongestStateName = 64;

// Letters, digits, '.', '_' and '-', and no dot in front.
[[nodiscard]] inline bool is_state_name(std::string_view name) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
           c == '-';
  };
  return !name.empty() && name.size() <= kLongestStateName && name.front() != '.' && std::ranges::all_of(name, allowed);
}

// Throws ApiError where it is none. `parameter`: the field of the request that it comes from.
inline void check_state_name(std::string_view name, const std::string& parameter) {
  if (is_state_name(name)) return;
  throw ApiError(400,
                 fmt::format("the name of a state has 1 to {} letters, digits, '.', '_' and '-', and no '.' in front",
                             kLongestStateName),
                 parameter);
}

}  // namespace qdelta::serve
