#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdint>
#include <set>
#include <utility>

#include "core/error.h"
#include "core/memory.h"
#include "io/atomic_file.h"
#include "io/safetensors.h"
#include "io/safetensors_checksum.h"
#include "io/untrusted_text.h"

namespace qdelta {
namespace {

struct Piece {
  const NamedTensor* tensor = nullptr;
  std::uint64_t bytes = 0;
};

void check_utf8(const std::string& path, const char* what, std::string_view text) {
  require(!first_invalid_utf8(text), "cannot write {}: {} {} is not valid UTF-8", path, what, shown(text));
}

// The tensors with their sizes, in the order given, after every check that can be made without writing.
std::vector<Piece> checked(const std::string& path, std::span<const NamedTensor> tensors) {
  std::vector<Piece> pieces;
  std::set<std::string_view> names;
  for (const NamedTensor& tensor : tensors) {
    check_utf8(path, "the tensor name", tensor.name);
    const std::string name = shown(tensor.name);
    require(tensor.name != kSafetensorsMetadata, "cannot write {}: a tensor must not be called {}", path, name);
    require(names.insert(tensor.name).second, "cannot write {}: two tensors are called {}", path, name);
    const auto bytes = safetensors_bytes(tensor.view.shape, tensor.view.dtype);
    require(bytes.has_value(), "cannot write {}: tensor {} has the impossible shape {}", path, name,
            tensor.view.shape.text());
    require(*bytes == 0 || tensor.view.data != nullptr, "cannot write {}: tensor {} has no data", path, name);
    pieces.push_back({&tensor, *bytes});
  }
  return pieces;
}

// Views that are not row-major as copies that are.
std::vector<NamedTensor> row_major(std::span<const NamedTensor> tensors, std::vector<Tensor>& copies) {
  std::vector<NamedTensor> rows(tensors.begin(), tensors.end());
  for (NamedTensor& tensor : rows) {
    if (tensor.view.shape.elements() == 0 || tensor.view.contiguous()) continue;
    copies.push_back(converted(tensor.view, tensor.view.dtype));
    tensor.view = std::as_const(copies.back()).view();
  }
  return rows;
}

bool aligned(const std::vector<Piece>& pieces) {
  std::uint64_t offset = 0;
  for (const Piece& piece : pieces) {
    if (offset % size_of(piece.tensor->view.dtype) != 0) return false;
    offset += piece.bytes;
  }
  return true;
}

// Largest elements first: what comes before a tensor is then a whole number of its elements.
void sort_by_alignment(std::vector<Piece>& pieces) {
  std::sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) {
    const std::size_t size_a = size_of(a.tensor->view.dtype);
    const std::size_t size_b = size_of(b.tensor->view.dtype);
    return size_a != size_b ? size_a > size_b : a.tensor->name < b.tensor->name;
  });
}

// The length and the JSON, padded so that the data starts at a multiple of 64.
std::string header_of(const std::string& path, const std::vector<Piece>& pieces,
                      const std::map<std::string, std::string>& metadata) {
  std::string header(kSafetensorsLengthBytes, '\0');
  header += '{';
  if (!metadata.empty()) {
    for (const auto& [key, value] : metadata) {
      check_utf8(path, "the metadata key", key);
      check_utf8(path, fmt::format("the metadata value of {},", shown(key)).c_str(), value);
    }
    header += fmt::format("\"{}\":{}", kSafetensorsMetadata, nlohmann::json(metadata).dump());
  }
  std::uint64_t offset = 0;
  for (const Piece& piece : pieces) {
    const ConstTensorView& view = piece.tensor->view;
    const auto extents = std::span(view.shape.extent).first(static_cast<std::size_t>(view.shape.rank));
    if (header.back() != '{') header += ',';
    header += fmt::format(R"({}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                          nlohmann::json(piece.tensor->name).dump(), name_of(view.dtype), fmt::join(extents, ","),
                          offset, offset + piece.bytes);
    offset += piece.bytes;
  }
  header += '}';
  header.append((kAlignment - header.size() % kAlignment) % kAlignment, ' ');

  const std::uint64_t length = header.size() - kSafetensorsLengthBytes;
  require(length <= kSafetensorsLongestHeader, "cannot write {}: the header takes {} bytes; at most {} are allowed",
          path, length, kSafetensorsLongestHeader);
  for (std::size_t i = 0; i < kSafetensorsLengthBytes; ++i) header[i] = static_cast<char>((length >> (8 * i)) & 0xffu);
  return header;
}

}  // namespace

void write_safetensors(const std::string& path, std::span<const NamedTensor> tensors,
                       const std::map<std::string, std::string>& metadata) {
  require(!metadata.contains(kChecksumKey), "cannot write {}: the metadata key \"{}\" is taken by the checksum", path,
          kChecksumKey);
  static_cast<void>(checked(path, tensors));
  std::vector<Tensor> copies;
  const std::vector<NamedTensor> rows = row_major(tensors, copies);
  std::vector<Piece> pieces = checked(path, rows);
  if (!aligned(pieces)) sort_by_alignment(pieces);
  std::map<std::string, std::string> sealed = metadata;
  sealed[kChecksumKey] = safetensors_checksum(rows, metadata);
  const std::string header = header_of(path, pieces, sealed);

  AtomicFile file(path);
  file.write(std::as_bytes(std::span(header)));
  for (const Piece& piece : pieces) {
    if (piece.bytes > 0) file.write({piece.tensor->view.data, static_cast<std::size_t>(piece.bytes)});
  }
  file.commit();
}

}  // namespace qdelta
