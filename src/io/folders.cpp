#include "io/folders.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <vector>

#include "core/error.h"
#include "io/file_descriptor.h"

namespace qdelta {

namespace fs = std::filesystem;

void sync_folder(const std::string& folder) {
  const FileDescriptor file(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!file || (::fsync(file.get()) != 0 && errno != EINVAL)) {
    fail(Status::io, "the folder {} could not be flushed to disk: {}", folder, reason_of(errno));
  }
}

void make_folders(const std::string& folder) {
  std::error_code error;
  std::vector<fs::path> missing;
  fs::path at = folder;
  if (!at.has_filename()) at = at.parent_path();  // a slash at the end
  for (; !at.empty() && !fs::exists(at, error); at = at.parent_path()) missing.push_back(at);
  fs::create_directories(folder, error);
  if (error) fail(Status::io, "cannot make the folder {}: {}", folder, error.message());
  for (const fs::path& made : missing) {
    sync_folder(made.has_parent_path() ? made.parent_path().string() : ".");
  }
}

}  // namespace qdelta
