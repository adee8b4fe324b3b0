// Folders that survive a power cut: what is made or renamed in a folder is on disk when that folder is flushed.
#pragma once

#include <string>

namespace qdelta {

// Flushes the names in a folder. Throws Error(io); a file system that cannot flush folders is taken as it is.
void sync_folder(const std::string& folder);

// Makes a folder, and those above it that are missing. Throws Error(io).
void make_folders(const std::string& folder);

}  // namespace qdelta
