// What values of options are checked against, with messages for people.
#pragma once

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <charconv>
#include <cstdint>
#include <string>

namespace qdelta {

// For seeds. CLI11 by itself would turn -4 into a huge number, and its own check lists the digits of the largest
// double.
inline CLI::Validator whole_number() {
  const auto check = [](const std::string& text) -> std::string {
    std::uint64_t value = 0;
    const char* end = text.data() + text.size();
    const auto read = std::from_chars(text.data(), end, value);
    if (read.ec == std::errc::result_out_of_range) return fmt::format("{} is too large a number", text);
    if (read.ec == std::errc() && read.ptr == end) return "";
    return fmt::format("expected a whole number, 0 or more, not '{}'", text);
  };
  return {check, ""};  // no description: the help says UINT already
}

}  // namespace qdelta
