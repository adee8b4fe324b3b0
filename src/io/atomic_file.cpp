#include "io/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <mutex>
#include <set>
#include <utility>

#include "core/error.h"
#include "io/temporary_name.h"

namespace qdelta {
namespace {

constexpr int kAttempts = 1000;  // at a free name for the temporary; leftovers of a killed process may hold some
constexpr int kLinks = 40;       // one after the other, as many as the system itself follows
constexpr std::size_t kLargestWrite = std::size_t{1} << 30;  // some systems refuse more than 2 GiB in one call

// The first time that a process writes into a folder it removes what others have left there: they are no more, and
// nobody else would.
void tidy_once(const FileDescriptor& folder, const std::string& path) {
  static std::mutex mutex;
  static std::set<std::pair<dev_t, ino_t>> tidied;
  struct stat info {};
  if (::fstat(folder.get(), &info) != 0) return;
  {
    const std::lock_guard lock(mutex);
    if (!tidied.emplace(info.st_dev, info.st_ino).second) return;
  }
  remove_leftovers(path);
}

// Where a path leads, link by link; the end need not be there.
std::string end_of_links(const std::string& path) {
  std::filesystem::path at = path;
  for (int links = 0;; ++links) {
    std::error_code error;
    if (!std::filesystem::is_symlink(at, error)) return at.string();
    if (links == kLinks) fail(Status::io, "cannot write {}: {}", path, reason_of(ELOOP));
    const std::filesystem::path next = std::filesystem::read_symlink(at, error);
    if (error) fail(Status::io, "cannot write {}: {}", path, error.message());
    at = next.is_absolute() ? next : at.parent_path() / next;
  }
}

}  // namespace

AtomicFile::AtomicFile(const std::string& path) : path_(path) {
  // A name with a NUL in it would be cut there by the system calls, and another file written.
  if (path.find('\0') != std::string::npos) fail(Status::io, "cannot write {}: the path has a NUL byte", path.c_str());
  const std::string target = end_of_links(path);
  const std::size_t slash = target.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : target.substr(0, slash + 1);
  name_ = slash == std::string::npos ? target : target.substr(slash + 1);
  if (name_.empty() || name_ == "." || name_ == "..") fail(Status::io, "cannot write \"{}\": it names no file", path);

  folder_ = FileDescriptor(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder_) fail(Status::io, "cannot write {}: folder {}: {}", path, folder, reason_of(errno));

  // rename would replace even a device, and find out about a folder only after everything has been written.
  struct stat info {};
  if (::fstatat(folder_.get(), name_.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0 && !S_ISREG(info.st_mode)) {
    fail(Status::io, "cannot write {}: {}", path, S_ISDIR(info.st_mode) ? reason_of(EISDIR) : "it is no regular file");
  }

  tidy_once(folder_, folder);
  for (int attempt = 0; attempt < kAttempts && !file_; ++attempt) {
    temporary_ = temporary_name();
    // Mode 0666 leaves the permissions to the umask, as for any file a program writes; mkstemp would force 0600.
    file_ = FileDescriptor(::openat(folder_.get(), temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (!file_ && errno != EEXIST) break;
  }
  if (!file_) {
    fail(Status::io, "cannot write {}: creating {} in {}: {}", path, temporary_, folder, reason_of(errno));
  }
}

AtomicFile::~AtomicFile() {
  if (state_ != State::committed) ::unlinkat(folder_.get(), temporary_.c_str(), 0);
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  check_open("write to");
  while (!bytes.empty()) {
    const ssize_t written = ::write(file_.get(), bytes.data(), std::min(bytes.size(), kLargestWrite));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail_with("writing", errno);
    if (written == 0) fail_with("writing", ENOSPC);  // accepted nothing and gave no reason: do not try for ever
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

void AtomicFile::commit() {
  check_open("commit");
  if (::fsync(file_.get()) != 0) fail_with("flushing to disk", errno);
  if (file_.close() != 0) fail_with("closing", errno);
  if (::renameat(folder_.get(), temporary_.c_str(), folder_.get(), name_.c_str()) != 0) {
    fail_with("renaming the finished file", errno);
  }
  state_ = State::committed;
  // Some file systems cannot flush a folder and say EINVAL: there is nothing more to be done on those.
  if (::fsync(folder_.get()) != 0 && errno != EINVAL) {
    fail(Status::io, "{} is written, but its folder could not be flushed to disk: {}", path_, reason_of(errno));
  }
}

void AtomicFile::fail_with(const char* doing, int error) {
  state_ = State::failed;
  fail(Status::io, "cannot write {}: {}: {}", path_, doing, reason_of(error));
}

void AtomicFile::check_open(const char* doing) const {
  if (state_ == State::failed) fail(Status::io, "cannot {} {}: an earlier write to it failed", doing, path_);
  if (state_ == State::committed) fail(Status::internal, "cannot {} {}: it is already committed", doing, path_);
}

void write_whole(const std::string& path, std::string_view text) {
  AtomicFile file(path);
  file.write(std::as_bytes(std::span(text)));
  file.commit();
}

}  // namespace qdelta
