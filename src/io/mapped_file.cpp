#include "io/mapped_file.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "core/error.h"
#include "io/regular_file.h"

namespace qdelta {

MappedFile::MappedFile(const std::string& path) {
  const FileDescriptor file = open_regular_file(path);
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) fail(Status::io, "cannot read the size of {}: {}", path, reason_of(errno));
  if (info.st_size == 0) return;  // mmap refuses a length of zero

  const auto size = static_cast<std::size_t>(info.st_size);
  void* address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (address == MAP_FAILED) fail(Status::io, "cannot map {} ({} bytes): {}", path, size, reason_of(errno));
  data_ = static_cast<std::byte*>(address);
  size_ = size;
  guard_ = GuardedMapping(address, size, path);
}

MappedFile::~MappedFile() {
  guard_ = {};  // the addresses may be another's as soon as they are free
  if (data_ != nullptr) ::munmap(data_, size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      guard_(std::move(other.guard_)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  // What this one held goes to `other` and is unmapped with it.
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(guard_, other.guard_);
  return *this;
}

}  // namespace qdelta
