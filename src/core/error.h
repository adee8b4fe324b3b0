// Errors are for the person who reads them: what was wrong, where, and what would be right.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace qdelta {

// The values are those of qdelta_status in the C header.
enum class Status : int {
  ok = 0,
  invalid_argument = 1,  // the caller passed something that can never work
  unsupported = 2,       // valid, but not on this build or machine
  out_of_memory = 3,
  io = 4,        // the operating system refused a read or a write
  corrupt = 5,   // a file's contents are not what its format promises
  internal = 6,  // a bug of ours
};

class Error : public std::runtime_error {
 public:
  Error(Status status, const std::string& message) : std::runtime_error(message), status_(status) {}
  [[nodiscard]] Status status() const noexcept { return status_; }

 private:
  Status status_;
};

template <class... Args>
[[noreturn]] void fail(Status status, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(status, fmt::format(format, std::forward<Args>(args)...));
}

// Throws invalid_argument unless `condition` holds.
template <class... Args>
void require(bool condition, fmt::format_string<Args...> format, Args&&... args) {
  if (!condition) fail(Status::invalid_argument, format, std::forward<Args>(args)...);
}

}  // namespace qdelta
