// What std::filesystem throws, in the words of our own messages: a path that cannot be looked at, since a folder may
// not be entered, a name is too long or links lead in a circle.
#pragma once

#include <filesystem>
#include <string>

namespace qdelta {

[[nodiscard]] inline std::string reason_of(const std::filesystem::filesystem_error& error) {
  return error.path1().string() + ": " + error.code().message();
}

}  // namespace qdelta
