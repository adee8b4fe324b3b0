// One process at a time in a folder: two that write the same run would leave a mixture of both.
#pragma once

#include <string>

#include "io/file_descriptor.h"

namespace qdelta {

// Keeps others from working in a folder, which must be there, as long as the descriptor lives; the system gives it back
// when the process ends, however it ends. Throws Error(io) where another process is at work. A folder that cannot be
// written, or a file system without locks, is not locked: what is wrong there shows soon enough.
[[nodiscard]] FileDescriptor lock_folder(const std::string& folder);
// The same by way of a file that is open already.
void lock_file(const FileDescriptor& file, const std::string& path);

}  // namespace qdelta
