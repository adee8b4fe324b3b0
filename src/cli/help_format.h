// How the help of every subcommand is laid out.
#pragma once

#include <CLI/CLI.hpp>

#include <string>
#include <utility>
#include <vector>

#include "cli/several_values.h"

namespace qdelta {

// Options of this group are accepted, but not in the help. (Those of the parser's own hidden group have no name in its
// messages.)
inline constexpr const char* kHiddenGroup = "Hidden";

// A name that an option had in an earlier version: it counts, where the present one is not given.
template <class Value>
CLI::Option* former_name(CLI::App& command, const std::string& name, Value& value, CLI::Option* present) {
  const auto alone = [present](const std::string& /*text*/) -> std::string {
    return present->count() == 0 ? "" : "is what " + present->get_name() + " was called: give one of them";
  };
  return command.add_option(name, value)->group(kHiddenGroup)->check(CLI::Validator(alone, ""));
}

// The parser's own layout, but what must be given is marked whatever its value is called, and flags are shown without
// the value that they stand for.
class HelpFormat : public CLI::Formatter {
 public:
  [[nodiscard]] std::string make_group(std::string group, bool positional,
                                       std::vector<const CLI::Option*> options) const override {
    if (group == kHiddenGroup) return "";
    return CLI::Formatter::make_group(std::move(group), positional, std::move(options));
  }
  [[nodiscard]] std::string make_option_name(const CLI::Option* option, bool positional) const override {
    std::string name = CLI::Formatter::make_option_name(option, positional);
    for (std::size_t open = name.find('{'); open != std::string::npos; open = name.find('{')) {
      name.erase(open, name.find('}', open) - open + 1);
    }
    return name;
  }
  [[nodiscard]] std::string make_option_opts(const CLI::Option* option) const override {
    const bool left_out = option->get_required() && !option->get_option_text().empty();
    const bool several = option->get_expected_max() == kSeveralValues;
    return CLI::Formatter::make_option_opts(option) + (several ? " ..." : "") +
           (left_out ? " " + get_label("REQUIRED") : "");
  }
};

}  // namespace qdelta
