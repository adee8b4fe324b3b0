// A POSIX file descriptor that closes itself, and the system's words for its errors.
#pragma once

#include <unistd.h>

#include <string>
#include <system_error>
#include <utility>

namespace qdelta {

// What strerror says, without the buffer that it shares between threads.
[[nodiscard]] inline std::string reason_of(int error) { return std::generic_category().message(error); }

class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int descriptor) : descriptor_(descriptor) {}  // -1: none
  ~FileDescriptor() { close(); }
  FileDescriptor(FileDescriptor&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;

  [[nodiscard]] explicit operator bool() const noexcept { return descriptor_ >= 0; }
  [[nodiscard]] int get() const noexcept { return descriptor_; }
  // Closing a file that was written may be the moment a network file system reports a full disk: 0, or -1 with errno.
  int close() noexcept { return descriptor_ < 0 ? 0 : ::close(std::exchange(descriptor_, -1)); }

 private:
  int descriptor_ = -1;
};

}  // namespace qdelta
