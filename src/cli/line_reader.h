// Lines that somebody types, with editing and a history (libedit) where it is a terminal.
#pragma once

#include <editline/readline.h>
#include <fmt/core.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <optional>
#include <string>

namespace qdelta {

class LineReader {
 public:
  // Nothing at the end of the input.
  [[nodiscard]] std::optional<std::string> read(const std::string& prompt) const {
    if (!terminal_) {
      fmt::print("{}", prompt);
      std::fflush(stdout);
      std::string line;
      if (!std::getline(std::cin, line)) return std::nullopt;
      return line;
    }
    const std::unique_ptr<char, decltype(&std::free)> line(::readline(prompt.c_str()), &std::free);
    if (!line) return std::nullopt;
    if (*line != '\0') ::add_history(line.get());
    return std::string(line.get());
  }

 private:
  const bool terminal_ = ::isatty(STDIN_FILENO) != 0 && ::isatty(STDOUT_FILENO) != 0;
};

}  // namespace qdelta
