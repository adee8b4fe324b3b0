// What the tests of src/io share: files in memory and made of pieces, and a user without rights.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/memory.h"
#include "files.h"
#include "testing.h"

namespace qdelta::testing {

// Permissions do not hold root back, and tests in containers run as root: become nobody for a while. False where the
// container knows no such user.
class Unprivileged {
 public:
  Unprivileged() : was_root_(::geteuid() == 0), succeeded_(!was_root_ || ::seteuid(65534) == 0) {}
  ~Unprivileged() {
    if (was_root_ && ::seteuid(0) != 0) std::abort();
  }
  Unprivileged(const Unprivileged&) = delete;
  Unprivileged& operator=(const Unprivileged&) = delete;
  Unprivileged(Unprivileged&&) = delete;
  Unprivileged& operator=(Unprivileged&&) = delete;

  [[nodiscard]] explicit operator bool() const { return succeeded_; }

 private:
  bool was_root_;
  bool succeeded_;
};

inline std::vector<std::byte> to_bytes(std::string_view text) {
  std::vector<std::byte> bytes(text.size());
  if (!text.empty()) std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

// In memory as in a mapped file: at an aligned address.
class FileInMemory {
 public:
  explicit FileInMemory(std::string_view contents) : buffer_(contents.size()) {
    if (!contents.empty()) std::memcpy(buffer_.data(), contents.data(), contents.size());
  }
  [[nodiscard]] std::span<const std::byte> bytes() const { return {buffer_.data(), buffer_.size()}; }

 private:
  AlignedBuffer buffer_;
};

inline std::string with_length(std::uint64_t length, std::string_view rest) {
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return file.append(rest);
}

// A file of this header, padded to a multiple of 8, and so many bytes of data.
inline std::string file_of(std::string header, std::size_t data_bytes) {
  header.append((8 - header.size() % 8) % 8, ' ');
  return with_length(header.size(), header) + std::string(data_bytes, '\1');
}

// The header of a file whose tensors are these: name, begin and end of so many bytes.
struct Bytes {
  std::string_view name;
  int begin;
  int end;
};
inline std::string header_of_bytes(const std::vector<Bytes>& tensors) {
  std::string header;
  for (const auto& [name, begin, end] : tensors) {
    header += header.empty() ? '{' : ',';
    header +=
        fmt::format(R"("{}":{{"dtype":"U8","shape":[{}],"data_offsets":[{},{}]}})", name, end - begin, begin, end);
  }
  return header + '}';
}

}  // namespace qdelta::testing
