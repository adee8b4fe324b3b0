// The header of a safetensors file, checked.
//
//   bytes 0..7      N, the length of the header: unsigned, little endian
//   bytes 8..8+N    a JSON object that starts with '{' and may be padded at its end with spaces:
//                   { "__metadata__": {"key": "text", ...},                                             may be absent
//                     "name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ... }
//   the rest        the elements, row-major and little endian; begin and end count from here
//
// The tensors cover the rest of the file without overlap, hole or tail, so that nothing can hide in it. Whoever reads a
// file someone else made relies on every check below: after them, every view of the file is safe to load from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"
#include "core/tensor.h"

namespace qdelta {

inline constexpr std::string_view kSafetensorsMetadata = "__metadata__";       // the one key that names no tensor
inline constexpr std::uint64_t kSafetensorsLongestHeader = 100'000'000;        // the reference refuses more
inline constexpr std::size_t kSafetensorsLengthBytes = sizeof(std::uint64_t);  // of N

struct SafetensorsEntry {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
  std::uint64_t begin = 0;  // in bytes from the start of the data
  std::uint64_t end = 0;
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> tensors;  // in the order their data lies in the file
  std::map<std::string, std::string> metadata;
  std::size_t data_start = 0;  // in bytes from the start of the file
};

// Reads and checks the header of a whole file. `label` names the file in messages. Throws Error(corrupt), or
// Error(unsupported) for a tensor of more than kMaxRank dimensions.
[[nodiscard]] SafetensorsHeader parse_safetensors_header(std::span<const std::byte> file, const std::string& label);

// Bytes of a tensor; nullopt when an extent is negative, when the product of all extents but the zeros does not fit a
// signed 64-bit integer, or when elements of less than a byte do not fill the last one. (The zeros are left out because
// strides multiply the other extents even when one is zero.)
[[nodiscard]] std::optional<std::uint64_t> safetensors_bytes(const Shape& shape, DType dtype) noexcept;

}  // namespace qdelta
