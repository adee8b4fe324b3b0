// Writing a file so that others see either the old one or the whole new one.
//
//   create   a temporary in the target's folder (temporary_name.h); those of dead processes are removed there
//   write    any number of times
//   commit   fsync the temporary, rename it over the target, fsync the folder
//
// The fsync before the rename keeps a power cut from leaving a named but empty file; the one after it keeps the rename.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "io/file_descriptor.h"

namespace qdelta {

class AtomicFile {
 public:
  // Every failure, here and below, throws Error(io) with the path and the reason, and leaves an existing target as it
  // was. A symbolic link is followed: what it leads to is the target. A target that is there and is no regular file (a
  // device, a folder) is refused.
  explicit AtomicFile(const std::string& path);
  // Without commit() the temporary is removed.
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  AtomicFile(AtomicFile&&) = delete;
  AtomicFile& operator=(AtomicFile&&) = delete;

  void write(std::span<const std::byte> bytes);
  // Once, as the last call; refused after a failed write.
  void commit();

 private:
  enum class State { open, failed, committed };

  [[noreturn]] void fail_with(const char* doing, int error);
  void check_open(const char* doing) const;

  std::string path_;       // as the caller gave it, for messages
  std::string name_;       // of the target within the folder
  std::string temporary_;  // likewise
  FileDescriptor folder_;  // names are resolved from here, so a chdir in between does no harm
  FileDescriptor file_;
  State state_ = State::open;
};

// All of a file at once.
void write_whole(const std::string& path, std::string_view text);

}  // namespace qdelta
