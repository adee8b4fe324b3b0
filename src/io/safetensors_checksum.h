// The checksum that safetensors files of ours carry: one for the whole file, in its metadata under kChecksumKey.
//
//   "xxh3:" and 16 hexadecimal digits: XXH3 (64 bits) of a text that lists what the file holds,
//     for each entry of the metadata, in the order of the keys:   "metadata" key value
//     for each tensor, in the order of the names:                 "tensor" name dtype shape, and of every 4 MiB of its
//                                                                 bytes (the last piece may be shorter) XXH3 as 16
//                                                                 digits
//   with a NUL after each of them; a shape is its extents with commas between them.
//
// It covers every name, number and element, so that one wrong bit anywhere in a file is seen; and not where in the file
// a tensor lies, so that it stays right when another program stores the same tensors and metadata in another order.
// Pieces are hashed in parallel. Files of others have no checksum.
#pragma once

#include <map>
#include <span>
#include <string>

#include "io/safetensors.h"

namespace qdelta {

inline constexpr const char* kChecksumKey = "qdelta.xxh3";

// `threads` as for thread_count().
[[nodiscard]] std::string safetensors_checksum(std::span<const NamedTensor> tensors,
                                               const std::map<std::string, std::string>& metadata, int threads = 0);

// Whether a text has the form of one.
[[nodiscard]] bool is_checksum(std::string_view text) noexcept;

}  // namespace qdelta
