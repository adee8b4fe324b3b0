// Files that are read or appended to: regular ones only. A named pipe or a device could make whoever opens it wait for
// ever.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "io/file_descriptor.h"

namespace qdelta {

// Opens a file for reading and does not wait. Throws Error(io) where there is none, or it is no regular file.
[[nodiscard]] FileDescriptor open_regular_file(const std::string& path);
// The same for writing at its end; where there is none it is made, for all to read and, if the umask lets them, to
// write.
[[nodiscard]] FileDescriptor open_regular_file_to_append(const std::string& path);

inline constexpr std::size_t kMostOfAText = std::size_t{1} << 30U;

// All of a file that is a text. One of more bytes is refused before there is memory for it.
[[nodiscard]] std::string read_text_file(const std::string& path, std::size_t most = kMostOfAText);
// The same; nullopt where there is no such file.
[[nodiscard]] std::optional<std::string> read_text_file_if_there(const std::string& path,
                                                                 std::size_t most = kMostOfAText);

}  // namespace qdelta
