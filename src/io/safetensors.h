// Reading and writing safetensors files. Their format is described in io/safetensors_header.h.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/tensor.h"
#include "io/mapped_file.h"
#include "io/safetensors_header.h"

namespace qdelta {

// An open file: memory-mapped, so that a view costs nothing and only what is touched is read. Everything the header
// says has been checked by the time one exists. Views live as long as the object, and survive its being moved.
class SafetensorsFile {
 public:
  // Throws Error(io) when the file cannot be read, Error(corrupt) or Error(unsupported) when its contents are refused.
  [[nodiscard]] static SafetensorsFile open(const std::string& path);
  // The same on a file's bytes in memory, which stay the caller's and must start at a multiple of 8. `label` stands in
  // messages where the path would.
  [[nodiscard]] static SafetensorsFile parse(std::span<const std::byte> bytes, std::string label);

  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  // In the order the tensors' data lies in the file.
  [[nodiscard]] const std::vector<std::string>& names() const noexcept { return names_; }
  [[nodiscard]] bool contains(std::string_view name) const { return tensors_.find(name) != tensors_.end(); }
  // Row-major and aligned to the element size. Throws Error(invalid_argument) when there is no such tensor,
  // with the names that come near.
  [[nodiscard]] ConstTensorView view(std::string_view name) const;
  // Without the checksum.
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const noexcept { return metadata_; }
  // Reads all of it and compares it with its checksum (io/safetensors_checksum.h): Error(corrupt) where they differ,
  // false where it has none. `threads` as for thread_count().
  bool verify(int threads = 0) const;

 private:
  SafetensorsFile() = default;
  void read(std::span<const std::byte> bytes);

  std::string path_;
  MappedFile file_;  // empty after parse()
  std::vector<std::string> names_;
  std::map<std::string, ConstTensorView, std::less<>> tensors_;
  std::map<std::string, std::string> metadata_;
  std::optional<std::string> checksum_;
};

struct NamedTensor {
  std::string name;
  ConstTensorView view;
};

// Writes a file whose data starts at a multiple of 64 and in which every tensor is aligned to its element size: in the
// order given where that allows it, else sorted by element size, largest first, then by name. The file appears whole or
// not at all (AtomicFile), and is never whole in memory; a view that is not row-major is copied. A checksum is added to
// the metadata (io/safetensors_checksum.h).
// Throws Error(invalid_argument) for names that are taken twice, reserved or not UTF-8, and Error(io).
void write_safetensors(const std::string& path, std::span<const NamedTensor> tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace qdelta
