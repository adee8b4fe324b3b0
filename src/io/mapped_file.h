// A file as read-only memory.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "io/mapping_guard.h"

namespace qdelta {

// Maps a whole file; pages are read when they are touched. The mapping starts at a page boundary, so an offset in the
// file that is a multiple of 64 is an address that is one too. Whoever shortens the file while it is mapped makes a
// later read of the missing pages fatal (io/mapping_guard.h): replace files by rename, as AtomicFile does, never in
// place.
class MappedFile {
 public:
  MappedFile() = default;
  // Throws Error(io) when the path is missing, unreadable or not a regular file. An empty file maps to an empty span.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return {data_, size_}; }

 private:
  std::byte* data_ = nullptr;  // munmap wants it without const
  std::size_t size_ = 0;
  GuardedMapping guard_;
};

}  // namespace qdelta
