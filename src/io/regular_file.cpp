#include "io/regular_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "core/error.h"

namespace qdelta {
namespace {

// Not open, with errno, where the path cannot be opened. Throws where it can and is no regular file; `what` says what
// it was opened for.
FileDescriptor try_open(const std::string& path, int flags = O_RDONLY, const char* what = "read") {
  // A path with a NUL in it would be cut there by the system call, and another file opened.
  if (path.find('\0') != std::string::npos) fail(Status::io, "cannot open {}: the path has a NUL byte", path.c_str());
  // Without O_NONBLOCK, opening a named pipe would wait for its other end before we could say that it is not a file.
  FileDescriptor file(::open(path.c_str(), flags | O_CLOEXEC | O_NONBLOCK, 0666));
  const auto is_no_file = [&] {
    fail(Status::io, "cannot {} {}: it is a device, pipe or socket, not a file", what, path);
  };
  if (!file && errno == ENXIO) is_no_file();  // a pipe that nobody reads, a socket
  if (!file) return file;
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) fail(Status::io, "cannot {} {}: {}", what, path, reason_of(errno));
  if (S_ISDIR(info.st_mode)) fail(Status::io, "cannot {} {}: {}", what, path, reason_of(EISDIR));
  if (!S_ISREG(info.st_mode)) is_no_file();
  return file;
}

std::string read_all(const FileDescriptor& file, const std::string& path, std::size_t most) {
  constexpr std::size_t kPiece = std::size_t{1} << 18U;
  std::string text;
  while (true) {
    const std::size_t before = text.size();
    // One byte more than may be there shows that there are too many.
    text.resize(before + std::min(kPiece, most + 1 - before));
    const ssize_t got = ::read(file.get(), text.data() + before, text.size() - before);
    if (got < 0 && errno != EINTR) fail(Status::io, "cannot read {}: {}", path, reason_of(errno));
    text.resize(before + static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
    if (got == 0) return text;
    if (text.size() > most) fail(Status::unsupported, "{} is too large: more than {} bytes", path, most);
  }
}

}  // namespace

FileDescriptor open_regular_file(const std::string& path) {
  FileDescriptor file = try_open(path);
  if (!file) fail(Status::io, "cannot open {}: {}", path, reason_of(errno));
  return file;
}

FileDescriptor open_regular_file_to_append(const std::string& path) {
  FileDescriptor file = try_open(path, O_WRONLY | O_CREAT | O_APPEND, "write");
  if (!file) fail(Status::io, "cannot write {}: {}", path, reason_of(errno));
  return file;
}

std::string read_text_file(const std::string& path, std::size_t most) {
  return read_all(open_regular_file(path), path, most);
}

std::optional<std::string> read_text_file_if_there(const std::string& path, std::size_t most) {
  const FileDescriptor file = try_open(path);
  if (!file && (errno == ENOENT || errno == ENOTDIR)) return std::nullopt;
  if (!file) fail(Status::io, "cannot open {}: {}", path, reason_of(errno));
  return read_all(file, path, most);
}

}  // namespace qdelta
