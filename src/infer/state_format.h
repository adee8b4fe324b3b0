// What a file of a saved state says, read and checked without the model it is of. The format is described in
// state_file.h.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "io/safetensors.h"

namespace qdelta {

inline constexpr std::uint64_t kStateVersion = 2;
inline constexpr const char* kStateFormat = "qdelta state";
inline constexpr const char* kStateTokenIds = "token_ids";

struct SavedState {
  std::int64_t tokens = 0;       // read so far
  std::uint64_t token_hash = 0;  // of all of them, in order
  // The token after them, which is read when the text goes on: only so are there logits for the next one. -1: none.
  std::int32_t pending = -1;
};

// Continues a hash over more tokens; start from 0, or from what a file says: then also where that is of version 1.
[[nodiscard]] std::uint64_t hash_tokens(std::uint64_t hash, std::span<const std::int32_t> tokens);

struct StateHeader {
  std::uint64_t version = 0;
  std::uint64_t model_hash = 0;  // as files of this version have it
  SavedState info;
};

// Throws Error(corrupt), or Error(unsupported) for a later version.
[[nodiscard]] StateHeader read_state_header(const SafetensorsFile& file);

// A tensor of the file, which must be F32 of this shape.
[[nodiscard]] ConstTensorView state_tensor(const SafetensorsFile& file, const std::string& name, const Shape& shape);

// The tokens that were read; none where the file does not say. Each is below `vocab_size`, and they have the hash that
// the header says.
[[nodiscard]] std::vector<std::int32_t> state_token_ids(const SafetensorsFile& file, const StateHeader& header,
                                                        std::int64_t vocab_size);

}  // namespace qdelta
