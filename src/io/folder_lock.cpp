#include "io/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>

#include "core/error.h"

namespace qdelta {

void lock_file(const FileDescriptor& file, const std::string& path) {
  if (::flock(file.get(), LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return;
  fail(Status::io, "another process is at work in {}; wait for it, or give another --out", path);
}

FileDescriptor lock_folder(const std::string& folder) {
  FileDescriptor file(::open((folder + "/.lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (file) lock_file(file, folder);
  return file;
}

}  // namespace qdelta
