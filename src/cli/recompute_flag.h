// --recompute of the commands that train.
#pragma once

#include <CLI/CLI.hpp>

#include <string>

#include "model/batch.h"

namespace qdelta {

inline const char* name_of(Recompute value) {
  return value == Recompute::none ? "none" : value == Recompute::some ? "some" : "all";
}

inline CLI::Option* add_recompute(CLI::App& command, Recompute& value) {
  const auto set = [&value](const std::string& name) {
    value = name == "some" ? Recompute::some : name == "all" || name == "true" ? Recompute::all : Recompute::none;
  };
  return command
      .add_option_function<std::string>("--recompute", set,
                                        "Less memory for more work: none, some (what is large for the time it takes), "
                                        "all (whole layers, a third more work)")
      ->check(CLI::IsMember({"none", "some", "all", "true", "false"}))
      ->default_str("none");
}

}  // namespace qdelta
