// What values of options are checked against, with messages for people.
#pragma once

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstdlib>
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

// For all other integers: CLI11 takes what 64 bits do not hold for the largest number that they do.
inline CLI::Validator fits_64_bits() {
  const auto check = [](const std::string& text) -> std::string {
    errno = 0;
    (void)std::strtoll(text.c_str(), nullptr, 0);  // what is no number at all is said by the conversion
    return errno == ERANGE ? fmt::format("{} is too large a number", text) : "";
  };
  return {check, ""};
}
// To every integer option of a command and its subcommands.
inline void check_integers(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    if (option->get_type_name().starts_with("INT")) option->check(fits_64_bits());
  }
  for (CLI::App* subcommand : app.get_subcommands(nullptr)) check_integers(*subcommand);
}

}  // namespace qdelta
